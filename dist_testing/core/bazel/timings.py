"""Reads the file with the durations of cases, for sharding. `//tools/ci -- timings` writes it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from dist_testing.core.ground.errors import ReportError

SCHEMA = 1

# Seconds by the target's label and the case's key (`XmlCase.key`).
Timings = Mapping[str, Mapping[str, float]]


def read_timings(path: Path) -> Timings:
    """Read a file of timings."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _unusable(path, f"{error}") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        found = content.get("schema") if isinstance(content, dict) else content
        raise _unusable(path, f"schema = {found!r:.60}, and this version reads schema {SCHEMA}")
    targets = content.get("targets")
    if not isinstance(targets, dict):
        raise _unusable(path, f"targets = {targets!r:.60}, and not an object")
    for target, cases in targets.items():
        if not isinstance(cases, dict):
            raise _unusable(path, f"{target} = {cases!r:.60}, and not an object")
        for case, seconds in cases.items():
            # To `isinstance`, a bool is an int. Python's JSON reader accepts NaN, infinity, and any number of digits.
            if not (type(seconds) in (int, float) and 0 <= seconds <= sys.float_info.max):
                raise _unusable(path, f"{target}, {case}: {seconds!r:.60}, and not a number of seconds")
    return targets


def _unusable(path: Path, problem: str) -> ReportError:
    return ReportError(
        f"{path}: no usable timings: {problem}.\n"
        "The file was edited by hand or cut off, or another version wrote it.\n"
        "Write it again: bazel run @dist_testing//tools/ci -- timings"
    )
