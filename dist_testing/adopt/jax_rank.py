"""Runs test methods of JAX's `MultiProcessTest` on a rank, and records how each one ends there."""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import sys
import time
import traceback
import unittest
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, TypeAlias

from dist_testing.error_text import summarise

_Raised: TypeAlias = (
    tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]  # as unittest has it
)

BEGAN, PASSED, FAILED, SKIPPED = "began", "passed", "failed", "skipped"
# JAX's own limit is 10 s; a busy machine may need more for the start of all ranks. Seconds.
_START_LIMIT_S = 120


@dataclass(frozen=True, slots=True)
class Record:
    """What happened to a test on a rank.

    Attributes:
        rank: The rank.
        test: Name of the class and of the method.
        what: "began", "passed", "failed" or "skipped".
        summary: Type and message of a failure.
        text: Traceback of a failure, reason of a skip.
        time_s: Monotonic time, the same clock for all ranks.
    """

    rank: int
    test: str
    what: str
    summary: str
    text: str
    time_s: float


class Records:
    """A file in memory to which all ranks of a world append; made before they are forked."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("dist-testing-jax")
        # Each write is then one line, whatever the other ranks do.
        fcntl.fcntl(self._fd, fcntl.F_SETFL, os.O_APPEND)

    def add(self, record: Record) -> None:
        """Append a record."""
        os.write(self._fd, f"{json.dumps(asdict(record))}\n".encode())

    def read(self) -> list[Record]:
        """Return all records, in the order of their times."""
        with open(self._fd, "rb", closefd=False) as file:
            file.seek(0)
            # A rank that was killed while it wrote leaves half a line at most.
            lines = [line for line in file.read().split(b"\n")[:-1] if line.endswith(b"}")]
        return sorted((Record(**json.loads(line)) for line in lines), key=lambda record: record.time_s)

    def close(self) -> None:
        """Free the memory."""
        os.close(self._fd)


@dataclass(frozen=True, slots=True)
class Tests:
    """The tests of one file that run on one world, and how their processes are described to JAX.

    Attributes:
        methods: Class and name of each test, in their order.
        size: Number of processes.
        port: The port at which rank 0 serves JAX's coordinator.
        gpus_per_process: Number of GPUs that each process sees; 0 leaves the choice to JAX.
        flags: More flags, as for the project's own main program.
        records: Takes the results.
    """

    methods: Sequence[tuple[type[unittest.TestCase], str]]
    size: int
    port: int
    gpus_per_process: int
    flags: Sequence[str]
    records: Records

    def run(self, rank: int) -> None:
        """Run all of them on a rank, as a process of the project's own main program does."""
        self._initialise(rank)
        result = _Result(self, rank)
        unittest.TestSuite([cls(name) for cls, name in self.methods]).run(result)
        importlib.import_module("jax").distributed.shutdown()

    def _initialise(self, rank: int) -> None:
        # Those of the project, which the library does not need.
        jax: Any = importlib.import_module("jax")
        absl_flags: Any = importlib.import_module("absl.flags")
        given = [
            f"--num_processes={self.size}",
            f"--multiprocess_test_worker_id={rank}",
            f"--multiprocess_test_controller_address=localhost:{self.port}",
        ]
        if self.gpus_per_process:
            first = rank * self.gpus_per_process
            visible = ",".join(map(str, range(first, first + self.gpus_per_process)))
            given.append(f"--jax_cuda_visible_devices={visible}")
        # pytest's own options are none of JAX.
        sys.argv[1:] = []
        jax.config.parse_flags_with_absl()
        absl_flags.FLAGS([sys.argv[0], *given, *self.flags])
        jax.config.complete_absl_config(absl_flags)
        jax.distributed.initialize(
            f"localhost:{self.port}",
            num_processes=self.size,
            process_id=rank,
            initialization_timeout=_START_LIMIT_S,
        )


def test_name(cls: type[unittest.TestCase], method: str) -> str:
    """Return the name of a test in the records."""
    return f"{cls.__qualname__}.{method}"


class _Result(unittest.TestResult):
    """Records each result as soon as it is known: the process may die in the next test."""

    def __init__(self, tests: Tests, rank: int) -> None:
        super().__init__()
        self._tests = tests
        self._rank = rank
        self._over: set[str] = set()

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._add(_name_of(test), BEGAN)

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        self._end(_name_of(test), PASSED)

    def addError(self, test: Any, err: _Raised) -> None:
        super().addError(test, err)
        if isinstance(test, unittest.TestCase):
            self._fail(_name_of(test), err)
        else:
            self._end_outside(test, FAILED, _summary(err), f"{test}\n{_text(err)}")

    def addFailure(self, test: Any, err: _Raised) -> None:
        self.addError(test, err)

    def addSubTest(self, test: Any, subtest: Any, err: _Raised | None) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None and err[0] is not None:
            self._fail(_name_of(test), err, f"{subtest}\n")

    def addSkip(self, test: Any, reason: str) -> None:
        super().addSkip(test, reason)
        if isinstance(test, unittest.TestCase):
            self._end(_name_of(test), SKIPPED, text=reason)
        else:
            self._end_outside(test, SKIPPED, "", reason)

    def addUnexpectedSuccess(self, test: Any) -> None:
        super().addUnexpectedSuccess(test)
        self._end(_name_of(test), FAILED, "unexpected success", "The test has passed despite expectedFailure.")

    def _end_outside(self, where: Any, what: str, summary: str, text: str) -> None:
        """Record the end of a class's or a module's setup or teardown, for the tests to which it belongs.

        That is every test that did not run yet, or the last one: `where` is "setUpClass (module.Class)", for example.
        """
        owner = where.id().partition("(")[2].removesuffix(")")
        own = [
            test_name(cls, name)
            for cls, name in self._tests.methods
            if owner in (cls.__module__, f"{cls.__module__}.{cls.__qualname__}")
        ]
        left = [name for name in own if name not in self._over]
        for name in left or own[-1:]:
            self._over.add(name)
            self._add(name, what, summary, text)

    def _fail(self, name: str, err: _Raised, before: str = "") -> None:
        self._end(name, FAILED, _summary(err), before + _text(err))

    def _end(self, name: str, what: str, summary: str = "", text: str = "") -> None:
        # The first end counts: a test that has failed is stopped, too.
        if name not in self._over:
            self._over.add(name)
            self._add(name, what, summary, text)

    def _add(self, name: str, what: str, summary: str = "", text: str = "") -> None:
        self._tests.records.add(Record(self._rank, name, what, summary, text, time.monotonic()))


def _summary(err: _Raised) -> str:
    return summarise(err[1]) if err[1] is not None else ""


def _text(err: _Raised) -> str:
    """Return the traceback, without the frames of unittest at its beginning."""
    if err[1] is None:
        return ""
    where = err[2]
    while where is not None and where.tb_next is not None and "__unittest" in where.tb_frame.f_globals:
        where = where.tb_next
    return "".join(traceback.format_exception(err[0], err[1], where))


def _name_of(test: unittest.TestCase) -> str:
    return test_name(type(test), test._testMethodName)
