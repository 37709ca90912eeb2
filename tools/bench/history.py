"""Keeps the figures of a bench over time: one JSON object per line, the latest last."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from figures import BenchError


def commit_of(folder: Path) -> str:
    """Return the short name of a checkout's commit, with "+" if its files differ from it; "" outside git."""
    try:
        names = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--exclude=*"]
        return subprocess.run(names, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def append(path: Path, bench: str, commit: str, report: Mapping[str, Any]) -> None:
    """Append the figures of a bench, with the time and the commit.

    Raises:
        BenchError: If the file cannot be written.
    """
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = json.dumps({"bench": bench, "when": when, "commit": commit, **report}, sort_keys=True, default=asdict)
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as error:
        raise BenchError(
            f"{path}: the history cannot be written: {error.strerror}.\n"
            "The figures above are complete, but no later run can compare with them.\n"
            "Give --history a file in a folder that exists, and that you may write to."
        ) from error


def read(path: Path, bench: str) -> list[dict[str, Any]]:
    """Return the earlier figures of a bench, the latest last; an empty list if the file does not exist.

    Raises:
        BenchError: If the file is no history.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise _no_history(path, str(error)) from error
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise _no_history(path, f"line {number}: {error}") from error
        if not isinstance(entry, dict) or not isinstance(entry.get("bench"), str):
            raise _no_history(path, f'line {number} has no "bench"')
        if entry["bench"] == bench:
            found.append(entry)
    return found


def _no_history(path: Path, why: str) -> BenchError:
    return BenchError(
        f"{path} is no history of benches: {why}.\n"
        "Another program has written the file, or a run was killed while it wrote.\n"
        "Give --history another file, or remove the broken line."
    )
