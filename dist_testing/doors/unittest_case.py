"""The unittest door: a test class whose methods run on every rank of a world."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import types
import unittest
from collections.abc import Callable
from typing import ClassVar, cast

from dist_testing.budget import MAX_TIMEOUT_S
from dist_testing.doors.session import Session, current_session
from dist_testing.errors import CaseFailedError, DistTestingError, UsageError
from dist_testing.outcomes import Status
from dist_testing.rank.bootstrap import FAILED_EXIT_CODE
from dist_testing.runner.case import Case
from dist_testing.runner.engine import RunningCase
from dist_testing.runner.needs import missing_need
from dist_testing.runner.report import failure_report
from dist_testing.runner.running_world import check_world_size
from dist_testing.spec import DEFAULT_WORLD_SIZE, ISOLATIONS

__all__ = ["MultiProcessTestCase"]

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True


class MultiProcessTestCase(unittest.TestCase):
    """Each test method runs on every rank of a fresh world; ranks are processes.

    `setUp` and `tearDown` run in the runner, once per test; `setUpRank` and `tearDownRank` run on every rank, around
    the method. The ranks are asked for when `setUp` calls `_spawn_processes`, or when the method begins. The library
    makes no process group here: the test does, with a store on `self.file_name` or whatever it likes.

    Attributes:
        rank: This rank; `MAIN_PROCESS_RANK` in the runner.
        file_name: An empty file that the ranks share, for a rendezvous.
    """

    # How ranks are made: "fork", "spawn", "pool"; "" for the target's or the command line's choice. Not inherited by
    # intention: a subclass that wants kept ranks says so.
    isolation: ClassVar[str] = ""
    # Limit of each test in seconds; None for the target's or the command line's.
    case_timeout_s: ClassVar[float | None] = None

    MAIN_PROCESS_RANK: ClassVar[int] = -1
    TEST_ERROR_EXIT_CODE: ClassVar[int] = FAILED_EXIT_CODE

    def __init__(self, methodName: str = "runTest", method_name: str | None = None) -> None:
        name = methodName if method_name is None else method_name
        super().__init__(name)
        self.rank = self.MAIN_PROCESS_RANK
        self.file_name = ""
        self._running: RunningCase | None = None
        # Without a method of that name the instance only serves as a namespace, as unittest allows for "runTest".
        if (method := getattr(self, name, None)) is not None:
            setattr(self, name, self.join_or_run(method))

    @property
    def world_size(self) -> int:
        """Ranks of each test; set the attribute, or override the property. Default: the target's, else 4."""
        spec = current_session().engine.spec
        return max(spec.world_sizes) if spec.target else DEFAULT_WORLD_SIZE

    @property
    def is_master(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @classmethod
    def tearDownClass(cls) -> None:
        """In the runner: let the ranks of a pool go.

        Raises:
            AssertionError: If they did not end well.
        """
        super().tearDownClass()
        if trouble := current_session().engine.end_pool():
            raise AssertionError(trouble)

    def setUp(self) -> None:
        """In the runner, before the ranks are asked for."""
        super().setUp()
        self._make_file()

    def setUpRank(self) -> None:
        """On every rank, before the method."""

    def tearDownRank(self) -> None:
        """On every rank, after the method; also when the method failed."""

    def join_or_run(self, method: Callable[[], None]) -> Callable[[], None]:
        """What a test method becomes: in the runner, wait for the ranks; on a rank, run."""

        @functools.wraps(method)
        def wrapper(self: MultiProcessTestCase) -> None:
            if self.rank == self.MAIN_PROCESS_RANK:
                self._join_processes(method)
            else:
                method()

        # Bound, as the method was: unittest's loader takes a plain function for a static method, and calls it.
        return types.MethodType(wrapper, self)

    def _spawn_processes(self) -> None:
        """Ask for the ranks. They inherit the environment and the working directory of this moment.

        Raises:
            UsageError: If the ranks of this test have been asked for already, or the world is larger than declared.
        """
        if self._running is not None:
            raise UsageError(
                f"{self.id()}: _spawn_processes was called twice.\n"
                "Each test has one world.\n"
                "Call it once, at the end of setUp, or not at all: then the test asks for its ranks itself."
            )
        session = current_session()
        try:
            world_size, timeout_s, isolation = self._checked_attributes(session)
        except DistTestingError as error:
            # The text says it all; where in this library it was found out is of no use.
            raise error.with_traceback(None) from None
        if missing := missing_need(session.engine.spec, world_size):
            if session.fail_on_missing or session.engine.spec.promises(world_size):
                self.fail(f"promised hardware missing: {missing}")
            self.skipTest(missing)
        self._make_file()
        cls = type(self)
        case = Case(
            name=self.id(),
            world_size=world_size,
            body={
                "door": "unittest",
                "module": cls.__module__,
                "qualname": cls.__qualname__,
                "method": self._testMethodName,
                "attributes": {"file_name": self.file_name},
            },
            timeout_s=timeout_s,
            isolation=isolation,
            pool=f"{cls.__module__}.{cls.__qualname__}" if isolation == "pool" else "",
            init=False,
            with_store=False,
        )
        self._running = session.engine.start(case)
        # However the test ends, its ranks do not outlive it: also when setUp fails after this, or the method is not
        # run.
        self.addCleanup(self._stop_processes)

    def _checked_attributes(self, session: Session) -> tuple[int, float, str]:
        """World size, limit in seconds and isolation of this class; torch's suites give the size as a text, too."""
        size: object = self.world_size
        if isinstance(size, str) and size.isascii() and size.isdecimal():
            size = int(size)
        if type(size) is not int:
            raise self._wrong("world_size", size, "a number of ranks")
        check_world_size(self.id(), size)
        session.check_declared(self.id(), size)
        timeout_s: object = self.case_timeout_s if self.case_timeout_s is not None else session.timeout_s
        if type(timeout_s) not in (int, float) or not 0 < cast(float, timeout_s) <= MAX_TIMEOUT_S:
            raise self._wrong("case_timeout_s", timeout_s, f"a number of seconds above 0, up to {MAX_TIMEOUT_S}")
        isolation: object = self.isolation or session.engine.spec.isolation
        if isolation not in ISOLATIONS:
            raise self._wrong("isolation", isolation, f"one of {', '.join(ISOLATIONS)}")
        return size, float(cast(float, timeout_s)), isolation

    def _wrong(self, name: str, value: object, expected: str) -> UsageError:
        return UsageError(
            f"{self.id()}: {name} = {value!r}; expected {expected}.\n"
            "The attribute of the class, or the property that it overrides, gives it.\n"
            "Correct it in the class."
        )

    def _join_processes(self, method: Callable[[], None]) -> None:
        if self._running is None:
            self._spawn_processes()
        running, self._running = self._running, None
        assert running is not None
        engine = current_session().engine
        result = engine.finish(running)
        match result.verdict.status:
            case Status.SKIPPED:
                self.skipTest(result.verdict.reason)
            case Status.FAILED:
                raise CaseFailedError(failure_report(result, target=engine.spec.target), result)

    def _stop_processes(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            current_session().engine.abandon(running)

    def _make_file(self) -> None:
        if self.file_name:
            return
        # In the run's folder, which goes whatever happens to this process.
        _, run = current_session().engine.prepare()
        descriptor, self.file_name = tempfile.mkstemp(prefix="rendezvous-", dir=run.path)
        os.close(descriptor)
        self.addCleanup(self._remove_file)

    def _remove_file(self) -> None:
        # A FileStore removes its file when the last of its users goes.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.file_name)
