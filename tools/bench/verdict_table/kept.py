"""Keeps the results of runs in a file, so that a run can be continued, and rows can be measured again."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from figures import BenchError, machine_facts, write_json

from verdict_table.judge import Finding

_SCHEMA = 1


class Kept:
    """The results in a file: by case, then by harness. They all have one limit and one version of torch.

    Args:
        path: The file; it need not exist. None keeps the results in memory.
        limit_s: The limit of a test, in seconds.

    Raises:
        BenchError: If the file cannot be read, or has results of another limit or another torch.
    """

    def __init__(self, path: Path | None, *, limit_s: int) -> None:
        self._path = path
        self._made_with: dict[str, Any] = {
            "bench": "verdicts",
            "schema": _SCHEMA,
            "limit_s": limit_s,
            "torch": metadata.version("torch").partition("+")[0],
        }
        self._results: dict[str, dict[str, dict[str, Any]]] = {}
        if path is not None and path.exists():
            self._results = self._read(path)

    def _read(self, path: Path) -> dict[str, dict[str, dict[str, Any]]]:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            differing = [key for key, value in self._made_with.items() if found.get(key) != value]
            results: dict[str, dict[str, dict[str, Any]]] = found["results"]
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise BenchError(f"{path}: no results of this bench: {error!r}. Name another file.") from error
        if differing:
            wanted = ", ".join(f"{key} = {self._made_with[key]}, not {found.get(key)}" for key in differing)
            raise BenchError(f"{path}: results of other runs: this run has {wanted}. Name another file.")
        return results

    def finding(self, case: str, harness: str) -> Finding | None:
        """Return the result of a harness for a case; None if there is none."""
        kept = self._results.get(case, {}).get(harness)
        return None if kept is None else _finding(kept["finding"])

    def add(self, case: str, harness: str, finding: Finding) -> None:
        """Add a result, in place of an older one, and write the file."""
        self._results.setdefault(case, {})[harness] = {
            "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
            "finding": dataclasses.asdict(finding),
        }
        if self._path is not None:
            write_json(self._path, {**self._made_with, "machine": machine_facts(), "results": self._results})

    def dates(self) -> str:
        """Return when the results were made, such as "2026-11-22 to 2026-11-23"."""
        dates = sorted(one["date"] for of_case in self._results.values() for one in of_case.values())
        return dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"


def _finding(kept: Mapping[str, Any]) -> Finding:
    # JSON has lists only.
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}
    return Finding(**values)
