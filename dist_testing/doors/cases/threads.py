"""A test class whose methods run on the threads of a world: the logic of `MultiThreadedTestCase`."""

from __future__ import annotations

import os
import queue
import threading
import unittest
from collections import ChainMap
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from dist_testing.doors.cases.exits import declared_exits
from dist_testing.doors.cases.world import WorldCase, default_world_size
from dist_testing.doors.rank_unittest import RankPipe, seed_generators
from dist_testing.doors.requirements.decision import unmet_requirement
from dist_testing.doors.session import current_session
from dist_testing.errors import CaseFailedError, DistTestingError, UsageError
from dist_testing.outcomes import Status
from dist_testing.rank.reporter import Reporter
from dist_testing.runner.case import Case, CaseResult
from dist_testing.runner.running_world import group_limit_s
from dist_testing.threaded import BACKEND

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

__all__ = ["RankThreads", "ThreadCase"]

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


class _Rank(threading.local):
    """What the calling thread is given for its test."""

    pipe: RankPipe
    timeout_s: float


_this = _Rank()
# Between taking from the queue of a class, and putting back what is others'.
_queue_lock = threading.Lock()


class ThreadCase(WorldCase):
    """Each test method runs on every rank of a fresh world; ranks are threads of the runner's own process.

    They see what `setUpClass`, module globals and `setUp` have made. `setUp` and `tearDown` run in the runner, once per
    test; `setUpRank` and `tearDownRank` run on every rank around the method, on an instance of its own, and call
    torch's names for them, `perThreadSetUp` and `perThreadTearDown`. The default group exists from before `setUpRank`
    to after the rank's cleanups. The ranks start when the method begins, even if `setUp` calls no `_spawn_threads`.

    A thread cannot be killed: a rank that hangs past the deadline fails its test and is left behind as a daemon. A
    crash ends the runner. Tests for which that is too much use `@pytest.mark.distributed(isolation="thread")`.

    Attributes:
        rank: This rank; `MAIN_THREAD_RANK` in the runner.
        threads: In the runner, the ranks that have been asked for.
        global_store: What the ranks of the running test share, in memory.
        exception_queue: For classes that run their tests themselves: a rank number and `sys.exc_info()`, of what they
            have caught.
    """

    MAIN_THREAD_RANK: ClassVar[int] = WorldCase.MAIN_PROCESS_RANK
    exception_queue: ClassVar[queue.Queue[tuple[int, _ExcInfo]]] = queue.Queue()
    global_store: ClassVar[Store]

    def __init__(self, method_name: str = "runTest", methodName: str = "runTest") -> None:
        """Make the instance for one test method.

        Args:
            method_name: torch's name for the argument.
            methodName: unittest's name for it.

        Raises:
            ValueError: If the class has no such method.
        """
        super().__init__(method_name if methodName == "runTest" else methodName)
        self.threads: RankThreads | None = None

    @property
    def world_size(self) -> int:
        """Ranks of each test; set the attribute, or override the property. Default: the target's, else 4."""
        return default_world_size()

    @property
    def _current_test_name(self) -> str:  # type: ignore[override]  # a property here and a method there, as in torch
        return self.id().rpartition(".")[2]

    def perThreadSetUp(self) -> None:
        """torch's name for `setUpRank`."""

    def perThreadTearDown(self) -> None:
        """torch's name for `tearDownRank`."""

    def setUpRank(self) -> None:
        """On every rank, before the method: `perThreadSetUp`."""
        self.perThreadSetUp()

    def tearDownRank(self) -> None:
        """On every rank, after the method, also when it failed: `perThreadTearDown`."""
        self.perThreadTearDown()

    def _spawn_threads(self) -> None:
        """Ask for the ranks. They start when the test method begins, so that `setUp` is over by then.

        Raises:
            UsageError: If they have been asked for already, the world is larger than declared, or the class says
                something that is not for threads.
            unittest.SkipTest: If the machine lacks what the test needs.
        """
        if self.threads is not None:
            raise UsageError(
                f"{self.id()}: _spawn_threads was called twice.\n"
                "Each test has one world.\n"
                "Call it once, at the end of setUp, or not at all: then the test asks for its ranks itself."
            )
        session = current_session()
        method = getattr(type(self), self._testMethodName, None)
        try:
            world_size = self._checked_size(session, self.world_size)
            timeout_s = self._checked_timeout(session)
            if self.isolation not in ("", "thread"):
                raise self._wrong("isolation", self.isolation, '"thread": that is what the class is')
            self._check_method(method)
            if method is not None and declared_exits(method):
                raise UsageError(
                    f"{self.id()}: @expected_exits on a test whose ranks are threads.\n"
                    "A thread has no exit code, and what kills it kills the runner.\n"
                    "Use MultiProcessTestCase for it."
                )
        except DistTestingError as error:
            # The text says it all; where in this library it was found out is of no use.
            raise error.with_traceback(None) from None
        environment = ChainMap({"WORLD_SIZE": str(world_size)}, os.environ)
        if reason := method and unmet_requirement(method, environment):
            self.skipTest(reason)
        case = Case(self.id(), world_size, {}, timeout_s, isolation="thread")
        self.threads = RankThreads(type(self), self._testMethodName, case, self._shows_locals)

    def _join_processes(self, fn: Callable[[], Any]) -> None:
        if self.threads is None:
            self._spawn_threads()
        try:
            self._join_threads(self.threads, fn)
        except CaseFailedError as error:
            self._expect_nothing_but_failures(error.result)
            raise

    @classmethod
    def _join_threads(cls, threads: Any, fn: Callable[[], Any]) -> None:
        """In the runner: run the ranks, and judge.

        Args:
            threads: Those that `_spawn_threads` has asked for.
            fn: The test method.
        """
        asked: RankThreads = threads
        cls._check_return_codes(asked.run(), asked.case.timeout_s, fn)

    @classmethod
    def _check_return_codes(cls, failed_ranks: Any, timeout: float, fn: Callable[[], Any]) -> None:
        """In the runner: give unittest what the ranks' outcomes add up to. A class may judge otherwise.

        Args:
            failed_ranks: The `CaseResult`.
            timeout: Seconds that the test was allowed.
            fn: The test method.

        Raises:
            unittest.SkipTest: If the ranks agree on a skip.
            CaseFailedError: If the test failed; its text is the report.
        """
        result: CaseResult = failed_ranks
        match result.verdict.status:
            case Status.SKIPPED:
                raise unittest.SkipTest(result.verdict.reason)
            case Status.FAILED:
                raise CaseFailedError(current_session().failure_report(result), result)

    @classmethod
    def _run(cls, test_name: str, rank: int, world_size: int, **kwargs: Any) -> None:
        """On a rank: make the instance, and run its test.

        Args:
            test_name: The method.
            rank: This rank.
            world_size: Ranks in the world.
            **kwargs: For classes that override it.
        """
        self = cls(test_name)
        self.rank = rank
        if hasattr(self, "_tls"):
            # torch's classes keep their tolerances by thread, and set them on the one that makes the class.
            self._tls = tolerances = threading.local()
            tolerances.precision, tolerances.rel_tol = getattr(cls, "_precision", 0), getattr(cls, "_rel_tol", 0)
        self.run_test_with_threaded_pg(test_name, rank, world_size)

    def run_test_with_threaded_pg(self, test_name: str, rank: int, world_size: int) -> None:
        """On a rank: run the method between `setUpRank` and `tearDownRank`, with a default group.

        Args:
            test_name: The method.
            rank: This rank.
            world_size: Ranks in the world.

        Raises:
            SystemExit: If the test did not pass, so that nothing that comes after it is done.
        """
        import torch.distributed as dist

        dist.init_process_group(
            BACKEND,
            rank=rank,
            world_size=world_size,
            store=self.global_store,
            timeout=timedelta(seconds=_this.timeout_s),
        )
        _this.pipe.run(self, test_name)

    def assertEqualOnRank(self, x: Any, y: Any, msg: Any = None, *, rank: int = 0) -> None:
        """`assertEqual`, on one rank: the ranks share a random generator, so only one of them can foretell a number."""
        if self.rank == rank:
            self.assertEqual(x, y, msg)

    def assertNotEqualOnRank(self, x: Any, y: Any, msg: Any = None, *, rank: int = 0) -> None:
        """`assertNotEqual`, on one rank."""
        if self.rank == rank:
            self.assertNotEqual(x, y, msg)


@dataclass(frozen=True, slots=True)
class RankThreads:
    """The ranks of a test that have been asked for.

    Attributes:
        cls: The test class.
        method: Its method.
        case: The case.
        tb_locals: Whether tracebacks show local variables.
    """

    cls: type[ThreadCase]
    method: str
    case: Case
    tb_locals: bool

    def __len__(self) -> int:
        return self.case.world_size

    def run(self) -> CaseResult:
        """Run them to the end of the test."""
        from torch._C._distributed_c10d import HashStore

        cls = self.cls
        # As for a test on processes; but here it is the runner's generators that all ranks share.
        seed_generators(is_fresh=False)
        cls.global_store = HashStore()
        while not cls.exception_queue.empty():
            # Of ranks that an earlier test has left behind.
            cls.exception_queue.get_nowait()
        return current_session().engine.run_here(self.case, self._run_rank)

    def _run_rank(self, rank: int, reporter: Reporter, limit_s: float) -> None:
        cls = self.cls
        reporter.phase("init")
        _this.pipe = pipe = RankPipe(reporter, exit_0_passes=cls.exit_0_passes, tb_locals=self.tb_locals, seeds=False)
        _this.timeout_s = group_limit_s(limit_s)
        try:
            cls._run(self.method, rank, self.case.world_size)
        except SystemExit:
            # What ended the test has been reported; it is raised to leave what a class does after its test.
            if not pipe.has_run or pipe.has_passed:
                raise
        self._report_caught(rank, reporter)
        if not pipe.has_run and cls.run_test_with_threaded_pg is ThreadCase.run_test_with_threaded_pg:
            raise UsageError(
                f"{cls.__qualname__}._run has returned, and {self.method} has not run.\n"
                "The class overrides _run, and does not call run_test_with_threaded_pg.\n"
                "Call it on the instance that _run makes."
            )

    def _report_caught(self, rank: int, reporter: Reporter) -> None:
        """Report what the class itself has caught on this rank."""
        errors = self.cls.exception_queue
        with _queue_lock:
            caught = [errors.get_nowait() for _ in range(errors.qsize())]
            for entry in caught:
                if entry[0] != rank:
                    errors.put(entry)
        for whose, (_, error, _) in caught:
            if whose == rank:
                reporter.ended_by(error)
