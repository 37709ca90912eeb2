"""Writes the capability matrix: what every cell of a backend did. `page` makes HTML of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dist_testing.conformance.cell import Result, Status
from dist_testing.conformance.expectations import Expectations
from dist_testing.core.ground.errors import ReportError

SCHEMA = 1


@dataclass(slots=True)
class Matrix:
    """The results of one backend.

    Attributes:
        backend: Name of the backend.
        torch: Version of torch.
        cells: Name of a cell to an object with `status`, `contract`, `row`, `seconds`, `detail`, and, for a deviation,
            `reason` and `link`. A backend whose file says that it was not run has the reason, too.
    """

    backend: str
    torch: str
    cells: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, result: Result, expectations: Expectations) -> None:
        """Add a result. `as_expected` says whether it agrees with the expectation file."""
        entry: dict[str, Any] = {
            "status": result.status.value,
            "contract": result.cell.contract.value,
            "row": result.cell.row,
            "seconds": result.seconds,
            "as_expected": not expectations.problem(result),
        }
        if result.detail:
            entry["detail"] = result.detail
        if result.lives is not None:
            entry["group_lives"] = result.lives
        if (row := expectations.row_of(result.cell)) is not None:
            entry |= {"reason": row.reason, "link": row.link}
        elif expectations.not_run:
            entry["reason"] = expectations.not_run
        self.cells[result.cell.name] = entry

    def merge(self, other: Matrix) -> None:
        """Add the cells of another part of the same run, such as another shard.

        Raises:
            ReportError: If it is of another backend or another torch.
        """
        if (other.backend, other.torch) != (self.backend, self.torch):
            raise ReportError(
                f"The matrices of {self.backend} on torch {self.torch} and of {other.backend} on torch {other.torch} "
                "are not parts of one run.\n"
                "Shards of one target have the same backend and torch.\n"
                "Merge the files of one run only."
            )
        self.cells |= other.cells

    def counts(self) -> Counter[str]:
        """Return how many cells ended how."""
        return Counter(str(entry["status"]) for entry in self.cells.values())

    @property
    def title(self) -> str:
        """The heading of pages about it."""
        return f"Capability matrix of {self.backend}, torch {self.torch}"

    def counts_text(self) -> str:
        """Return the counts as text, such as "1 refuses, 7 works"."""
        return ", ".join(f"{count} {name}" for name, count in sorted(self.counts().items()))

    def remark(self) -> str:
        """Return a sentence for a matrix without any cell that has run; "" for others."""
        if any(entry["status"] != Status.NOT_RUN.value for entry in self.cells.values()):
            return ""
        details = dict.fromkeys(entry.get("detail", "") for entry in self.cells.values())
        return f"No cell has run, so nothing is known about the backend: {'; '.join(details)}"

    def deviations(self) -> dict[str, dict[str, Any]]:
        """Return the cells that ended otherwise than the contract asks for."""
        return {name: entry for name, entry in self.cells.items() if _deviates(entry)}

    def to_json(self) -> str:
        """Return the text of matrix.json."""
        content = {
            "schema": SCHEMA,
            "backend": self.backend,
            "torch": self.torch,
            "counts": dict(sorted(self.counts().items())),
            "cells": dict(sorted(self.cells.items())),
        }
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def read_matrix(path: str | Path) -> Matrix:
    """Read a matrix.json.

    Raises:
        ReportError: If it is not one, or of another schema.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']}; expected {SCHEMA}")
        matrix = Matrix(str(content["backend"]), str(content["torch"]), dict(content["cells"]))
        for name, entry in matrix.cells.items():
            Status(entry["status"])
            Status(entry["contract"])
            if not isinstance(entry["row"], str):
                raise ValueError(f"cell {name} has no row")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ReportError(
            f"{path}: this is no capability matrix: {type(error).__name__}: {error}.\n"
            "The kit writes matrix.json, with a schema number and an object for each cell.\n"
            "Give a file that `python -m dist_testing.conformance --out=DIR` of this version has written."
        ) from error
    return matrix


def difference(before: Matrix, after: Matrix) -> dict[str, tuple[str, str]]:
    """Return the cells that differ: name to the statuses before and after; "" where a matrix lacks the cell."""
    names = sorted(before.cells.keys() | after.cells.keys())
    pairs = {name: (_status(before.cells, name), _status(after.cells, name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _status(cells: Mapping[str, Mapping[str, Any]], name: str) -> str:
    return str(cells[name]["status"]) if name in cells else ""


def _deviates(entry: Mapping[str, Any]) -> bool:
    return entry["status"] not in (entry["contract"], Status.NOT_RUN.value)


def operations(matrix: Matrix) -> dict[str, Counter[str]]:
    """Return the counts of statuses by operation, sorted by name."""
    found: dict[str, Counter[str]] = {}
    for name, entry in sorted(matrix.cells.items()):
        counts = found.setdefault(name.partition("/")[0], Counter())
        counts[entry["status"]] += 1
        counts["deviations"] += _deviates(entry)
    return found


def markdown(matrix: Matrix) -> str:
    """Return the matrix as Markdown: one line per operation, then the deviations by reason."""
    statuses = [status.value for status in Status]
    lines = [
        f"# {matrix.title}",
        "",
        f"{len(matrix.cells)} cells: {matrix.counts_text()}",
        "",
        *([matrix.remark(), ""] if matrix.remark() else []),
        f"| operation | {' | '.join(statuses)} | deviations |",
        "|---|" + "---|" * (len(statuses) + 1),
    ]
    for operation, counts in operations(matrix).items():
        numbers = " | ".join(str(counts[status] or "") for status in statuses)
        lines.append(f"| `{operation}` | {numbers} | {counts['deviations'] or ''} |")
    by_reason: dict[tuple[str, str, str], list[str]] = {}
    for name, entry in matrix.deviations().items():
        key = (entry.get("reason", "not declared"), entry.get("link", ""), entry["status"])
        by_reason.setdefault(key, []).append(name)
    if by_reason:
        lines += [
            "",
            "## Deviations",
            "",
            "| status | reason | where to read | cells | for example |",
            "|---|---|---|---|---|",
        ]
    for (reason, link, status), names in by_reason.items():
        lines.append(f"| {status} | {_cell(reason)} | {_cell(link)} | {len(names)} | `{names[0]}` |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
