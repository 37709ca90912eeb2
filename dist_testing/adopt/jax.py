"""A plugin of pytest for JAX's multi-process tests: `pytest -p dist_testing.adopt.jax --jax-processes=4`.

The tests of a file whose classes derive from `MultiProcessTest` run on the ranks of one world, one after the other, as
the processes of the file's own main program would run them. Each test has a verdict over all ranks.
"""

from __future__ import annotations

import importlib
import inspect
import socket
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dist_testing.adopt.jax_rank import BEGAN, FAILED, PASSED, SKIPPED, Record, Records, Tests, test_name
from dist_testing.adopt.on_ranks import configure_limit, run_on_ranks
from dist_testing.case import CaseFailedError
from dist_testing.errors import DistTestingError, UsageError
from dist_testing.launch.clean import spare_cuda, unshareable_reasons
from dist_testing.spec import check_world_size

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

_BASE = "MultiProcessTest"
_MODULE = "test_multiprocess"
_SIZE, _GPUS, _FLAG = "--jax-processes", "--jax-gpus-per-process", "--jax-flag"
_DEFAULT_SIZE = 2

# At import, before a test file asks for the GPUs: no rank could be forked then.
spare_cuda()


class RanksFailedError(AssertionError):
    """A test has failed on one or more ranks, all of which lived on."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options that are flags of the own main program."""
    group = parser.getgroup("JAX's multi-process tests")
    group.addoption(_SIZE, metavar="N", default=str(_DEFAULT_SIZE), help=f"processes (default: {_DEFAULT_SIZE})")
    group.addoption(_GPUS, metavar="N", default="0", help="GPUs that each process sees (default: what JAX chooses)")
    group.addoption(_FLAG, metavar="FLAG", action="append", default=[], help="another flag of JAX; may be repeated")


def pytest_configure(config: pytest.Config) -> None:
    """Read the limit and the options."""
    configure_limit(config)
    try:
        size = check_world_size(_SIZE, _number(config.getoption(_SIZE)), f"Write {_SIZE}=4, for example.")
        gpus = _number(config.getoption(_GPUS))
        if not isinstance(gpus, int):
            raise UsageError(
                f"{_GPUS}={gpus}: expected a number, 0 or more.\n"
                "Each process sees so many GPUs, and no other process sees them.\n"
                f"Write {_GPUS}=1, for example, or leave it out."
            )
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[_WORLDS] = _Worlds(size, gpus, config.getoption(_FLAG))


def pytest_pycollect_makeitem(collector: Any, name: str, obj: object) -> Any:
    """Collect the classes whose tests run on ranks."""
    if not (isinstance(obj, type) and issubclass(obj, unittest.TestCase)):
        return None
    bases = [base for base in obj.__mro__ if base.__name__ == _BASE and base.__module__.endswith(_MODULE)]
    if not bases:
        return None
    # A file may import the base itself, which has no tests.
    return [] if obj in bases else _Class.from_parent(collector, name=name, tests=obj)


class _Class(pytest.Collector):
    """A class with tests that run on ranks."""

    def __init__(self, *, tests: type[unittest.TestCase], **more: Any) -> None:
        super().__init__(**more)
        self.cls = tests
        self.own_markers.extend(getattr(tests, "pytestmark", []))

    def collect(self) -> Iterator[_Item]:
        """Yield the tests as unittest finds them."""
        for name in unittest.TestLoader().getTestCaseNames(self.cls):
            yield _Item.from_parent(self, name=name)


class _Item(pytest.Item):
    """A test that runs on ranks; pytest sets nothing up for it."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        assert isinstance(self.parent, _Class)
        self.cls = self.parent.cls
        self.own_markers.extend(getattr(getattr(self.cls, self.name), "pytestmark", []))

    @property
    def record_name(self) -> str:
        """Its name in the records."""
        return test_name(self.cls, self.name)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Return what pytest prints above a failure; with a line, which it needs for a mark that skips."""
        code = getattr(inspect.unwrap(getattr(self.cls, self.name)), "__code__", None)
        return self.path, 0 if code is None else code.co_firstlineno - 1, self.record_name

    def runtest(self) -> None:
        """Run the file's tests, if they have not run yet, and judge this one."""
        __tracebackhide__ = True
        self.config.stash[_WORLDS].judge(self)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the report of the ranks: the traceback of this process says nothing."""
        if isinstance(excinfo.value, RanksFailedError | CaseFailedError | DistTestingError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)


class _Run:
    """One world that has run tests, and what is known about them.

    Attributes:
        error: The failure of the world itself, such as a rank that died; None if all ranks lived to the end.
    """

    def __init__(self, size: int, records: list[Record], error: CaseFailedError | None) -> None:
        self.error = error
        self._size = size
        self._records = records

    def judge(self, name: str, *, is_last: bool) -> None:
        """Judge one test. `is_last`: whether no test of the world comes after it.

        Raises:
            AssertionError: If it failed.
            unittest.SkipTest: If all ranks have skipped it.
        """
        __tracebackhide__ = True
        own = [record for record in self._records if record.test == name]
        ended = [record for record in own if record.what != BEGAN]
        if len(ended) < self._size:
            # Before the ranks that failed, because they lost the one that died.
            assert self.error is not None, f"{name}: {len(ended)} of {self._size} ranks have ended it"
            if own:
                raise self.error
            raise RanksFailedError(
                f"{name} (world of {self._size}) has not run: its world ended in an earlier test of the file.\n"
                f"{str(self.error).partition(chr(10))[0]}\n"
                "Correct that test first, or run this one alone."
            )
        if failed := [record for record in ended if record.what == FAILED]:
            raise RanksFailedError(_failure(name, failed, self._size))
        if skipped := [record for record in ended if record.what == SKIPPED]:
            _judge_skips(name, skipped, [record for record in ended if record.what == PASSED], self._size)
        if is_last and self.error is not None:
            # A rank has died after its last test.
            raise self.error


def _failure(name: str, failed: list[Record], size: int) -> str:
    first = failed[0]
    lines = [f"{name} (world of {size}): rank {first.rank} failed first: {first.summary}"]
    for record in failed:
        lines += ["", f"rank {record.rank} of {size}{'' if record is first else ' also'} failed:", record.text.rstrip()]
    return "\n".join(lines)


def _judge_skips(name: str, skipped: list[Record], passed: list[Record], size: int) -> None:
    __tracebackhide__ = True
    reasons = sorted({record.text for record in skipped})
    if not passed and len(reasons) == 1:
        raise unittest.SkipTest(reasons[0])
    sides = [f"rank {record.rank} skipped ({record.text})" for record in sorted(skipped, key=lambda one: one.rank)]
    sides += [f"rank {record.rank} passed" for record in sorted(passed, key=lambda one: one.rank)]
    raise RanksFailedError(
        f"{name} (world of {size}): ranks disagree about a skip: {'; '.join(sides)}.\n"
        "The condition of the skip differs from rank to rank, such as a number of local devices.\n"
        "Skip on all ranks or on none."
    )


class _Worlds:
    """Runs the tests of each file on a world of its own, when the first of them is due."""

    def __init__(self, size: int, gpus_per_process: int, flags: list[str]) -> None:
        self._size = size
        self._gpus_per_process = gpus_per_process
        self._flags = flags
        # Each result is used once, so that a test that is run again runs again.
        self._runs: dict[_Item, tuple[_Run, bool]] = {}

    def judge(self, item: _Item) -> None:
        """Judge a test. See `_Run.judge`."""
        __tracebackhide__ = True
        if item not in self._runs:
            items = self._batch(item)
            run = self._run(items)
            self._runs |= {one: (run, one is items[-1]) for one in items}
        run, is_last = self._runs.pop(item)
        run.judge(item.record_name, is_last=is_last)

    def _batch(self, item: _Item) -> list[_Item]:
        """Return the tests that run on one world: this one, and those of its file that follow."""
        # A worker of pytest-xdist does not know which tests it will get.
        if hasattr(item.config, "workerinput"):
            return [item]
        items = [one for one in item.session.items if isinstance(one, _Item) and one.path == item.path]
        # pytest does not ask for those that it skips by their mark.
        return [one for one in items[items.index(item) :] if one.get_closest_marker("skip") is None]

    def _run(self, items: list[_Item]) -> _Run:
        __tracebackhide__ = True
        _check_shareable(items[0])
        # Not in each fork of it.
        importlib.import_module("torch.distributed")
        records = Records()
        tests = Tests(
            [(item.cls, item.name) for item in items],
            self._size,
            _free_port(),
            self._gpus_per_process,
            self._flags,
            records,
        )
        error: CaseFailedError | None = None
        try:
            run_on_ranks(tests.run, items[0].nodeid.partition("::")[0], self._size)
        except CaseFailedError as failed:
            error = failed
        try:
            return _Run(self._size, records.read(), error)
        finally:
            records.close()


_WORLDS = pytest.StashKey[_Worlds]()


def _check_shareable(item: _Item) -> None:
    """Refuse to fork ranks that could not use JAX.

    Raises:
        UsageError: If this process has used it.
    """
    reasons = unshareable_reasons()
    is_used = getattr(sys.modules.get("jax._src.xla_bridge"), "backends_are_initialized", None)
    if is_used is not None and is_used():
        reasons.append("JAX has made an array or listed its devices")
    if reasons:
        raise UsageError(
            f"{item.nodeid}: its ranks cannot be forked from pytest's process: {'; '.join(reasons)}.\n"
            "The top level of a test file, or a test without ranks, has used the devices in this process.\n"
            "Run the multi-process tests alone, and use devices in tests only."
        )


def _free_port() -> int:
    # JAX's coordinator binds the port itself, and takes no socket.
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port: int = chosen.getsockname()[1]
        return port


def _number(text: str) -> object:
    return int(text) if text.isascii() and text.isdecimal() else text
