"""A plugin of pytest for Lightning's standalone tests: `pytest -p dist_testing.adopt.standalone`.

Each test with `RunIf(standalone=True)` runs on a world of its own, in one session of pytest. Lightning's launcher
starts the test's command once more for each further rank; the adapter has forked these ranks before the test begins.

    rank 0: the test ... launcher ... Popen(own command, LOCAL_RANK=1)     ...  -> reports
                                        |  environment, then exit code  ^
    rank 1: waits --------------------> |  the same test from its beginning

The launcher of rank 0 decides about the number of ranks, their environment and the port, while the test runs.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import pytest

from dist_testing.adopt.on_ranks import pytest_configure as pytest_configure
from dist_testing.adopt.on_ranks import ranks_of, refuse_unshareable, suite_limit_s
from dist_testing.core.ground.case import CaseFailedError
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.launch.clean import spare_cuda
from dist_testing.core.pytest.internals import replace_setup_state, xfailed_key
from dist_testing.core.pytest.pytest_rank import capture_nothing
from dist_testing.core.pytest.rank_plugins import run_phases
from dist_testing.core.pytest.reports import skip_reason

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

# $PL_RUN_STANDALONE_TESTS (library): with the adapter for Lightning: its conftest selects the standalone tests
# (default: 1).
_SWITCH = "PL_RUN_STANDALONE_TESTS"
# Most of these tests ask for two ranks. A larger world costs a second start of the test.
_FIRST_SIZE = 2
# The steps of an item, beside its call, that the process of pytest leaves to the ranks.
_SETUP = ("setup", "teardown")
# Set on ranks, where the item is pytest's own.
_ON_RANK = pytest.StashKey[bool]()
_RANK, _SIZE = "LOCAL_RANK", "WORLD_SIZE"

os.environ.setdefault(_SWITCH, "1")
# At import, before a test file asks for the GPUs: no rank could be forked then.
spare_cuda()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave the setup of a standalone test to its ranks, and replace what its call does."""
    if _ON_RANK not in item.stash and any(mark.kwargs.get("standalone") for mark in item.iter_markers("skipif")):
        vars(item).update(dict.fromkeys(_SETUP, lambda: None), runtest=functools.partial(_run_test, item))


def _run_test(item: pytest.Item) -> None:
    """Run the whole test on ranks, and end as it has ended there."""
    __tracebackhide__ = True
    refuse_unshareable(item.nodeid, "standalone")
    try:
        ended = _run_on_ranks(item)
    except CaseFailedError:
        # The ranks have judged the marks for expected failures.
        item.stash[xfailed_key] = False  # type: ignore[misc]  # not None, and so final
        raise
    if ended["outcome"] == "xfailed":
        pytest.xfail(ended["reason"])
    if ended["outcome"] == "skipped":
        pytest.skip(ended["reason"])


def _run_on_ranks(item: pytest.Item) -> dict[str, str]:
    """Return the outcome and the reason of the test on rank 0."""
    __tracebackhide__ = True
    size = _FIRST_SIZE
    while True:
        lines = _Lines(size)
        try:
            with ranks_of(functools.partial(_run_item, item, lines), item.nodeid, size, suite_limit_s()) as world:
                result = world.run()
                if lines.needed.value > size:
                    size = lines.needed.value
                    continue
                world.judge(result, CaseFailedError)
                ended: dict[str, str] = world.values(result)[0]
                return ended
        finally:
            lines.close()


class _Lines:
    """What the ranks of one world use to talk; made before they are forked."""

    def __init__(self, size: int) -> None:
        # Further rank -> both ends of its line: of rank 0, and of the rank itself.
        self.ends = {rank: multiprocessing.Pipe() for rank in range(1, size)}
        # Number of ranks that the test has asked for, if that is more than there are; else 0.
        self.needed = multiprocessing.RawValue("i", 0)

    def close(self) -> None:
        for end in itertools.chain.from_iterable(self.ends.values()):
            end.close()


def _run_item(item: pytest.Item, lines: _Lines, rank: int) -> dict[str, str] | None:
    """Run the test on a rank. On rank 0, return "outcome" ("passed", "skipped" or "xfailed") and "reason"."""
    capture_nothing(item.config)
    item.stash[_ON_RANK] = True
    for name in (*_SETUP, "runtest"):
        del vars(item)[name]
    # Whatever is set up already belongs to the process of pytest, and is torn down there.
    replace_setup_state(item.session, lambda state: state())
    if rank == 0:
        return _run_first(item, lines)
    line = lines.ends[rank][1]
    # Empty if the test does not need the rank.
    env = line.recv()
    if not env:
        return None
    os.environ.clear()
    os.environ.update(env)
    line.send(os.getpid())
    status = 1
    try:
        _run(item)
        status = 0
    finally:
        line.send(status)
    return None


def _run_first(item: pytest.Item, lines: _Lines) -> dict[str, str]:
    started: set[int] = set()

    class Popen(subprocess.Popen):  # type: ignore[type-arg]  # generic only for typing
        """Takes a command that starts this test as another rank for that rank, and starts all others as ever."""

        def __new__(cls, args: Any, *more: Any, **named: Any) -> Any:
            rank = _rank_in(args, named)
            if rank is None:
                return super().__new__(cls)
            _check_started(item, rank, more, named, started)
            if rank not in lines.ends:
                lines.needed.value = max(rank + 1, _number(named["env"].get(_SIZE)) or 0)
                # Not by an exception: the test's own handlers would run, and some of them would hide it.
                os._exit(0)
            started.add(rank)
            return _RankHandle(args, lines.ends[rank][0], named["env"])

    original, subprocess.Popen = subprocess.Popen, Popen  # type: ignore[misc]
    try:
        return _run(item)
    finally:
        subprocess.Popen = original  # type: ignore[misc]
        for rank, (line, _) in lines.ends.items():
            if rank not in started:
                line.send({})


def _rank_in(args: object, named: Mapping[str, Any]) -> int | None:
    """Return the rank for which a command starts this very command once more; None for any other command."""
    env = named.get("env")
    if not isinstance(args, list | tuple) or not isinstance(env, Mapping):
        return None
    command = [os.fspath(part) for part in args]
    own = sys.argv[1:]
    # The interpreter, then `-m` and a module, or a file.
    begin = len(command) - len(own)
    if command[:1] != [sys.executable] or begin not in (2, 3) or command[begin:] != own:
        return None
    return _number(env.get(_RANK)) or None


def _number(text: object) -> int | None:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdecimal() else None


def _check_started(
    item: pytest.Item, rank: int, more: Sequence[object], named: Mapping[str, Any], started: set[int]
) -> None:
    """Refuse what a rank that exists already cannot do."""
    streams = [name for name in ("stdin", "stdout", "stderr") if named.get(name) is not None]
    if not (more or streams or rank in started):
        return
    what = f"the arguments {streams}" if streams else "positional arguments" if more else "a second time"
    raise UsageError(
        f"{item.nodeid}: it starts rank {rank} of itself with {what}.\n"
        "The adapter takes such a command for a rank that it has forked already, which has the streams of the test and "
        "runs it once.\n"
        "Run this test alone, without -p dist_testing.adopt.standalone."
    )


class _RankHandle:
    """A rank in the place of the process that a launcher starts, with the names of `Popen` that launchers use."""

    stdin = stdout = stderr = None

    def __init__(self, args: Any, line: Connection, env: Mapping[str, str]) -> None:
        self.args = args  # the command
        # 0 or 1 when the rank has ended the test; None before, and if its process was killed.
        self.returncode: int | None = None
        self._line = line
        line.send(dict(env))
        self.pid: int = line.recv()  # the rank's process

    def poll(self) -> int | None:
        if self.returncode is None and self._line.poll():
            self.returncode = self._line.recv()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not self._line.poll(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code

    def communicate(self, input: object = None, timeout: float | None = None) -> tuple[None, None]:  # noqa: A002
        del input
        self.wait(timeout)
        return None, None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Errors:
    """Keeps the first exception that makes the test fail: pytest's reports have only its text."""

    def __init__(self) -> None:
        self.first: BaseException | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and self.first is None:
            if call.excinfo is None:
                self.first = AssertionError(report.longreprtext)
            else:
                error = call.excinfo.value
                self.first = error.with_traceback(_from_file(error.__traceback__, str(item.path)))
        return report


def _from_file(where: TracebackType | None, path: str) -> TracebackType | None:
    """Return the part of a traceback that begins in the test's file; all of it if none does."""
    rest = where
    while rest is not None and rest.tb_frame.f_code.co_filename != path:
        rest = rest.tb_next
    return where if rest is None else rest


def _run(item: pytest.Item) -> dict[str, str]:
    """Run setup, test and teardown, as pytest in a process of its own does."""
    errors = _Errors()
    item.config.pluginmanager.register(errors)
    reports = run_phases(item)
    if errors.first is not None:
        raise errors.first
    for report in reports:
        if report.skipped:
            expected: str | None = getattr(report, "wasxfail", None)
            if expected is not None:
                return {"outcome": "xfailed", "reason": expected.removeprefix("reason: ")}
            return {"outcome": "skipped", "reason": skip_reason(report)}
    return {"outcome": "passed", "reason": ""}
