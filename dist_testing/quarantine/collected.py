"""Which test files a session has collected as a whole: only they show that an entry of the file names no case."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dist_testing.core.pytest.marked_items import SPEC_KEY
from dist_testing.quarantine.rows import is_pattern, pattern_of

_BEFORE_WILDCARD = re.compile(r"[^*?]*/")


class Collected:
    """What a session was asked to collect, and what it has collected."""

    def __init__(self, config: pytest.Config) -> None:
        self._root = config.rootpath
        self._is_bazel = SPEC_KEY in config.stash
        # With --lf, pytest leaves out tests of a file while it collects the file.
        self._is_partial = bool(config.getoption("lf", False))
        if config.args_source is config.ArgsSource.TESTPATHS:
            self._asked = [self._root]
        else:
            folder = config.invocation_params.dir
            self._asked = [Path(folder, argument) for argument in map(str, config.args) if "::" not in argument]
        self._whole: set[str] = set()
        # Files with a part that failed or was skipped as a whole.
        self._broken: set[str] = set()

    def add(self, report: pytest.CollectReport) -> None:
        """Note a file, a class or a folder that was collected."""
        (self._whole if report.passed else self._broken).add(report.nodeid.partition("::")[0])

    def is_judged(self, case: str) -> bool:
        """Return whether the session would have a case that fits an entry, if there was one.

        The file of the entry was collected without an error, by an argument that names no test. Outside Bazel, an entry
        whose file does not exist is judged, too. A pattern of files needs an argument for the folder of them all.
        """
        file = case.partition("::")[0]
        if self._is_partial:
            return False
        if is_pattern(file):
            files = pattern_of(file)
            folder = _BEFORE_WILDCARD.match(file)
            return self._is_asked(folder[0] if folder else "") and not any(map(files.fullmatch, self._broken))
        if not self._is_bazel and not (self._root / file).exists():
            return True
        return file in self._whole - self._broken and self._is_asked(file)

    def _is_asked(self, name: str) -> bool:
        path = self._root / name
        return any(path.is_relative_to(asked) for asked in self._asked)
