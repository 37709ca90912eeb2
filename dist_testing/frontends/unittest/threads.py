"""The logic of `MultiThreadedTestCase`: each method runs on the threads of a world."""

from __future__ import annotations

import os
import queue
import threading
from collections import ChainMap
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from dist_testing.case import Case, CaseBody, CaseFailedError, CaseResult
from dist_testing.engine.running_world import group_limit_s
from dist_testing.errors import UsageError
from dist_testing.frontends.requirements.decision import unmet_requirement
from dist_testing.frontends.unittest.exits import declared_exits
from dist_testing.frontends.unittest.on_rank import RankPipe, seed_generators
from dist_testing.frontends.unittest.plain import current_session
from dist_testing.frontends.unittest.world_case import WorldCase, default_world_size
from dist_testing.launch.isolation import THREAD, Isolation
from dist_testing.rank.reporter import Reporter
from dist_testing.threaded import BACKEND

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

__all__ = ["RankThreads", "ThreadCase"]

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


class _Rank(threading.local):
    """The arguments of the calling thread's test."""

    pipe: RankPipe
    timeout_s: float


_this = _Rank()
# Held while a rank takes entries from a class's queue and puts those of other ranks back.
_queue_lock = threading.Lock()


class ThreadCase(WorldCase):
    """Runs each test method on every rank of a fresh world; ranks are threads of the runner's own process.

    The threads share module globals and class attributes with the runner. `setUp` and `tearDown` run in the runner,
    once per test. `setUpRank` and `tearDownRank` run on every rank around the method, on the rank's own instance, and
    call torch's names for them, `perThreadSetUp` and `perThreadTearDown`. The default group exists from before
    `setUpRank` until after the rank's cleanups. The ranks start when the method begins, also without a call of
    `_spawn_threads`.

    A thread cannot be killed: a rank that hangs past the deadline fails its test, and its thread stays as a daemon. A
    crash ends the runner. Where that is not acceptable, use `@pytest.mark.distributed(isolation="thread")`.

    Attributes:
        rank: This rank; `MAIN_THREAD_RANK` (-1) in the runner.
        threads: In the runner, the ranks of the test; None before `_spawn_threads`.
        global_store: A store in memory that the ranks of the running test share.
        exception_queue: For classes that run their tests themselves: pairs of a rank number and the `sys.exc_info()` of
            an exception that the class has caught.
    """

    MAIN_THREAD_RANK: ClassVar[int] = WorldCase.MAIN_PROCESS_RANK
    exception_queue: ClassVar[queue.Queue[tuple[int, _ExcInfo]]] = queue.Queue()
    global_store: ClassVar[Store]

    def __init__(self, method_name: str = "runTest", methodName: str = "runTest") -> None:
        super().__init__(method_name if methodName == "runTest" else methodName)
        self.threads: RankThreads | None = None

    @property
    def world_size(self) -> int:
        """Ranks of each test; a class sets an attribute or overrides this. Default: the target's size, else 4."""
        return default_world_size()

    @property
    def _current_test_name(self) -> str:  # type: ignore[override]  # a property here and a method there, as in torch
        return self.id().rpartition(".")[2]

    def perThreadSetUp(self) -> None:
        """Runs on every rank before the method; torch's name for `setUpRank`. Does nothing by default."""

    def perThreadTearDown(self) -> None:
        """Runs on every rank after the method; torch's name for `tearDownRank`. Does nothing by default."""

    def setUpRank(self) -> None:
        """Runs on every rank before the method: calls `perThreadSetUp`."""
        self.perThreadSetUp()

    def tearDownRank(self) -> None:
        """Runs on every rank after the method, also if it failed: calls `perThreadTearDown`."""
        self.perThreadTearDown()

    def _spawn_threads(self) -> None:
        """Prepare the ranks. They start when the test method begins, after the end of `setUp`.

        Raises:
            UsageError: If it was called already, the world is larger than declared, or an attribute of the class does
                not fit threads.
            unittest.SkipTest: If a requirement of the test is not met.
        """
        if self.threads is not None:
            raise UsageError(
                f"{self.id()}: _spawn_threads was called twice.\n"
                "Each test has one world.\n"
                "Call it once, at the end of setUp, or not at all: then the ranks start when the method begins."
            )
        method = getattr(type(self), self._testMethodName, None)
        world_size, timeout_s, isolation = self._checked(method, self.world_size, self.isolation)
        environment = ChainMap({"WORLD_SIZE": str(world_size)}, os.environ)
        if reason := method and unmet_requirement(method, environment):
            self.skipTest(reason)
        case = Case(self.id(), world_size, CaseBody("unittest"), timeout_s, isolation=isolation.name)
        self.threads = RankThreads(type(self), self._testMethodName, case, self._shows_locals)

    def _checked_isolation(self, name: object) -> Isolation:
        if name not in ("", THREAD.name):
            raise self._wrong("isolation", name, f'"{THREAD.name}": the ranks of this class are threads')
        return THREAD

    def _check_method(self, method: Any) -> None:
        super()._check_method(method)
        if method is not None and declared_exits(method):
            raise UsageError(
                f"{self.id()}: @expected_exits on a test whose ranks are threads.\n"
                "A thread has no exit code, and a signal that kills it kills the runner.\n"
                "Derive the class from MultiProcessTestCase."
            )

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
        """Run the ranks that `_spawn_threads` has prepared, in the runner, and judge the test."""
        asked: RankThreads = threads
        cls._check_return_codes(asked.run(), asked.case.timeout_s, fn)

    @classmethod
    def _check_return_codes(cls, failed_ranks: Any, timeout: float, fn: Callable[[], Any]) -> None:
        """Report the ranks' verdict to unittest, in the runner. A class may override it and judge otherwise.

        Args:
            failed_ranks: The `CaseResult`.
            timeout: Limit of the test in seconds.
            fn: The test method.

        Raises:
            unittest.SkipTest: If the ranks agree on a skip.
            CaseFailedError: If the test failed; its text is the report.
        """
        current_session().judge(failed_ranks)

    @classmethod
    def _run(cls, test_name: str, rank: int, world_size: int, **kwargs: Any) -> None:
        """Make the instance and run its test, on a rank."""
        self = cls(test_name)
        self.rank = rank
        if hasattr(self, "_tls"):
            # torch's classes keep tolerances per thread, and set them only for the thread that makes the class.
            self._tls = tolerances = threading.local()
            tolerances.precision, tolerances.rel_tol = getattr(cls, "_precision", 0), getattr(cls, "_rel_tol", 0)
        self.run_test_with_threaded_pg(test_name, rank, world_size)

    def run_test_with_threaded_pg(self, test_name: str, rank: int, world_size: int) -> None:
        """Run the method between `setUpRank` and `tearDownRank`, on a rank, with a default group.

        Raises:
            SystemExit: If the test did not pass, so that the code after it does not run.
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
        """Call `assertEqual` on one rank only.

        The ranks share a random generator, so each rank draws other numbers.
        """
        if self.rank == rank:
            self.assertEqual(x, y, msg)

    def assertNotEqualOnRank(self, x: Any, y: Any, msg: Any = None, *, rank: int = 0) -> None:
        """Call `assertNotEqual` on one rank only; the arguments are those of `assertEqualOnRank`."""
        if self.rank == rank:
            self.assertNotEqual(x, y, msg)


@dataclass(frozen=True, slots=True)
class RankThreads:
    """The ranks of a test, prepared but not started."""

    cls: type[ThreadCase]
    method: str
    case: Case
    # Whether tracebacks show local variables.
    tb_locals: bool

    def __len__(self) -> int:
        return self.case.world_size

    def run(self) -> CaseResult:
        """Run the ranks to the end of the test."""
        from torch._C._distributed_c10d import HashStore

        cls = self.cls
        # As for a test on processes; but here all ranks share the runner's generators.
        seed_generators(is_fresh=False)
        cls.global_store = HashStore()
        while not cls.exception_queue.empty():
            # Entries of ranks that an earlier test has left behind.
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
            # The outcome has been reported; the exception only skips the code that a class runs after its test.
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
        """Report the exceptions that the class itself has caught on this rank."""
        errors = self.cls.exception_queue
        with _queue_lock:
            caught = [errors.get_nowait() for _ in range(errors.qsize())]
            for entry in caught:
                if entry[0] != rank:
                    errors.put(entry)
        for whose, (_, error, _) in caught:
            if whose == rank:
                reporter.ended_by(error)
