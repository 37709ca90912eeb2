"""Runs a torch-style test file through `python -m dist_testing.compat`, and reads unittest's output."""

from __future__ import annotations

from pathlib import Path

from tests.support.children import Ended, assert_no_folder_left, write_file
from tests.support.starter import LIMIT_S, Starter

_WORDS = {"ok": "PASSED", "FAIL": "FAILED", "ERROR": "ERROR", "skipped": "SKIPPED"}


def run_file(starter: Starter, folder: Path, source: str, *arguments: str, limit_s: float = LIMIT_S) -> Ended:
    """Run `python -m dist_testing.compat test_file.py ...` to its end, and check that it leaves no folder behind."""
    write_file(folder, "test_file.py", source)
    child = starter.start(["-m", "dist_testing.compat", "test_file.py", *arguments], folder)
    ended = Ended(child.wait(limit_s), child.log)
    assert_no_folder_left(folder)
    return ended


def outcomes(log: str) -> dict[str, str]:
    """Return the outcome of each test by name, read from the output of `unittest -v`."""
    found = {}
    pending = ""
    for line in log.splitlines():
        name, separator, rest = line.partition(" (__main__.")
        if separator and name.startswith("test_") and " ... " in rest:
            word = rest.rpartition(" ... ")[2].partition(" ")[0]
            # A warning of torch, which goes to the same place, can stand between a test's name and its outcome.
            pending = "" if word in _WORDS else name
            if not pending:
                found[name] = _WORDS[word]
        elif pending and line in _WORDS:
            found[pending] = _WORDS[line]
            pending = ""
    return found
