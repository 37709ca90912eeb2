"""The file of `--dist-continue`: the next run leaves out the cases that have passed.

The file has JSON lines. The first says how the cases run; each further one is the result of a case. A line goes to the
kernel as soon as its case has ended, so it survives a kill of the runner.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest

from dist_testing.core.events.event import CaseEnded, CaseRecorded
from dist_testing.core.ground.codec import WrongValueError, shape_of
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.record import BAD, Status
from dist_testing.core.ground.spec import Spec
from dist_testing.core.pytest.in_runner import FRESH_KEY
from dist_testing.core.pytest.marked_items import RUN_SPEC_KEY
from dist_testing.core.session.existing_world import existing_rank
from dist_testing.core.session.session import event_stream

NAME = "continued"
_OPTION = "--dist-continue"
_SCHEMA = 1
# The first line of our files is shorter. Bytes.
_MAX_HEAD_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class _Head:
    """The first line: with which settings the cases have passed."""

    dist_continue: Annotated[int, range(_SCHEMA, _SCHEMA + 1)]
    backend: str
    isolation: str
    world_sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Result:
    """A further line: the result of a case, by its node id. A later line of the same case replaces it."""

    case: str
    status: Status


_HEAD, _RESULT = shape_of(_Head), shape_of(_Result)


def from_options(spec: Spec, given: Mapping[str, str]) -> Path:
    """Return the file that the command line names."""
    path = given[_OPTION]
    if spec.target:
        raise _refused(
            path,
            f"it is for plain pytest, and this is the target {spec.target}",
            "Bazel keeps the results of targets itself, and runs those that have not passed.",
            "Leave the option out.",
        )
    return Path(path)


def continued_run(config: pytest.Config) -> ContinuedRun | None:
    """Return the plugin of a session; none for an interpreter that collects again what the session has selected."""
    return None if FRESH_KEY in config.stash else ContinuedRun(config, config.stash[RUN_SPEC_KEY])


class ContinuedRun:
    """Deselects the cases that have passed in an earlier run, and writes the results of the others to the file."""

    def __init__(self, config: pytest.Config, spec: Spec) -> None:
        """Open the file, or create it.

        A UsageError refuses one that is not of this option, is damaged, or belongs to other settings, and a session
        that several processes share.
        """
        self._path: Path = spec.settings[NAME]
        self._config = config
        _check_alone(config, self._path)
        self._fd, known = _open(self._path, _Head(_SCHEMA, spec.backend.name, spec.isolation, spec.world_sizes))
        self._passed = {case for case, status in known.items() if status not in BAD}
        self._count = self._passed_count = 0
        # Of cases that have not ended: a teardown can still fail.
        self._statuses: dict[str, Status] = {}
        event_stream().subscribe(self._take, CaseRecorded, CaseEnded, name=f"the file {self._path} of {_OPTION}")

    def _take(self, event: CaseRecorded | CaseEnded) -> None:
        if isinstance(event, CaseRecorded):
            self._statuses[event.record.nodeid] = event.record.status
        elif status := self._statuses.pop(event.nodeid, None):
            _append(self._fd, _Result(event.nodeid, status))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """Deselect what has passed, after all other selection."""
        yield
        done = [item for item in items if item.nodeid in self._passed]
        self._count, self._passed_count = len(items), len(done)
        if done:
            items[:] = [item for item in items if item.nodeid not in self._passed]
            self._config.hook.pytest_deselected(items=done)

    @property
    def _is_complete(self) -> bool:
        return 0 < self._count == self._passed_count

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A run with nothing left to do is a success; pytest takes it for one without tests."""
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self._is_complete:
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Tell how many cases were left out."""
        passed = f"{self._passed_count} of {self._count} cases had passed before"
        if self._is_complete:
            passed = f"all {self._count} cases had passed before; remove the file to run them again"
        terminalreporter.write_line(f"dist_testing: {passed} ({_OPTION}={self._path})")

    def pytest_unconfigure(self) -> None:
        """Close the file."""
        os.close(self._fd)


def _check_alone(config: pytest.Config, path: Path) -> None:
    if getattr(config.option, "dist", "no") != "no" or hasattr(config, "workerinput"):
        raise _refused(
            path,
            "not possible with pytest-xdist",
            "Its workers must collect the same tests, also one that starts after others have passed tests.",
            "Leave -n out: --dist-jobs runs worlds side by side.",
        )
    if config.getoption("dist_watch"):
        raise _refused(
            path,
            "not possible with --dist-watch",
            "The watch mode chooses the tests, and a test that has passed may fail after the next save.",
            "Leave one of the two out.",
        )
    if existing_rank() is not None:
        raise _refused(
            path,
            "not possible in a world that another launcher has started (RANK is set)",
            "Each of its ranks runs pytest, and all must choose the same tests.",
            "Run plain pytest: the library starts the ranks.",
        )


def _open(path: Path, head: _Head) -> tuple[int, dict[str, Status]]:
    """Open a file, or create it; return its descriptor and the results in it."""
    try:
        # Opening a pipe without a reader would block this process.
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError("it is not a regular file")
            known, end = _read(fd, path, head)
            # The run before was killed while it wrote the last line.
            os.ftruncate(fd, end)
            if not end:
                _append(fd, head)
        except BaseException:
            os.close(fd)
            raise
    except (OSError, ValueError) as error:
        # A null character in the path raises a ValueError.
        raise _refused(
            path,
            f"cannot be read and written: {error}",
            "The run keeps the results of its cases there. The folder must exist.",
            f"Write {_OPTION}=progress.jsonl, for example, or leave it out.",
        ) from error
    return fd, known


def _read(fd: int, path: Path, head: _Head) -> tuple[dict[str, Status], int]:
    """Return the results in a file, and the length of its complete lines."""
    with open(fd, "rb", closefd=False) as file:
        first = file.readline(_MAX_HEAD_BYTES)
        if not first.endswith(b"\n") and _line(head).startswith(first):
            return {}, 0
        _check_head(first, path, head)
        known: dict[str, Status] = {}
        end = len(first)
        for number, line in enumerate(file, 2):
            if not line.endswith(b"\n"):
                break
            try:
                result: _Result = _RESULT.read(json.loads(line))
            except (WrongValueError, ValueError, RecursionError) as error:
                raise _refused(
                    path,
                    f"line {number} is damaged: {error}",
                    "The file was changed after it was written. Only its last line can be incomplete, after a kill.",
                    "Remove the line, or the file to run all cases again.",
                ) from None
            known[result.case] = result.status
            end += len(line)
    return known, end


def _check_head(first: bytes, path: Path, head: _Head) -> None:
    try:
        found: _Head = _HEAD.read(json.loads(first))
    except (WrongValueError, ValueError, RecursionError) as error:
        raise _refused(
            path,
            f"the file has other content, and is left as it is: {error}",
            "Another program, or another version of dist_testing, has written it, or its first line was changed.",
            "Name a file that does not exist; the run creates it.",
        ) from None
    if found != head:
        raise _refused(
            path,
            f"its cases have passed with {_settings(found)}; this run has {_settings(head)}",
            "A case that has passed with other settings may fail with these.",
            "Use a file for each kind of run, or the same options as before.",
        )


def _settings(head: _Head) -> str:
    return f"backend {head.backend}, isolation {head.isolation}, world sizes {', '.join(map(str, head.world_sizes))}"


def _append(fd: int, line: _Head | _Result) -> None:
    data = _line(line)
    if os.write(fd, data) < len(data):
        raise OSError("the disk is full")


def _line(line: _Head | _Result) -> bytes:
    write = (_HEAD if isinstance(line, _Head) else _RESULT).write
    assert write is not None
    return json.dumps(write(line)).encode() + b"\n"


def _refused(path: Path | str, what: str, cause: str, way_out: str) -> UsageError:
    return UsageError(f"{_OPTION}={path}: {what}.\n{cause}\n{way_out}")
