"""The logic of `MultiThreadedTestCase`: each method runs on the threads of a world."""

from __future__ import annotations

import os
import queue
import threading
import traceback
import unittest
from collections import ChainMap
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from dist_testing.core.engine.running_world import group_limit_s
from dist_testing.core.ground.case import SETTINGS, Case, CaseBody, CaseFailedError, CaseResult
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.outcomes import Kind, RankOutcome
from dist_testing.core.ground.skips import skip_for_exit_code, unmet_requirement
from dist_testing.core.launch.isolation import Isolation
from dist_testing.core.rank.generators import seed_generators
from dist_testing.core.rank.reporter import Reporter
from dist_testing.core.unittest.comparison import TensorComparisons
from dist_testing.core.unittest.exits import declared_exits
from dist_testing.core.unittest.plain import current_session
from dist_testing.core.unittest.unittest_rank import RankPipe
from dist_testing.core.unittest.world_case import WorldCase, default_world_size
from dist_testing.threaded import BACKEND, THREAD

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]
# The arguments of the calling thread's test: `pipe`, a `RankPipe`, and `timeout_s`.
_this_rank = threading.local()
# Held while a rank takes entries from a class's queue and puts those of other ranks back.
_queue_lock = threading.Lock()


class _FailedRanks(list[tuple[int, _ExcInfo]]):
    """The ranks that did not pass, each with the `sys.exc_info()` of its exception, as torch's classes get them."""

    def __init__(self, result: CaseResult, raised: Sequence[tuple[int, BaseException]]) -> None:
        known = {rank for rank, _ in raised}
        # A rank that runs on, or that could not be started, has no exception.
        others = [
            (outcome.rank, _stand_in(outcome))
            for outcome in result.outcomes
            if outcome.kind is not Kind.PASSED and outcome.rank not in known
        ]
        super().__init__((rank, (type(error), error, error.__traceback__)) for rank, error in (*raised, *others))
        self.result = result
        self.as_made = list(self)


def _stand_in(outcome: RankOutcome) -> BaseException:
    if outcome.kind is Kind.SKIPPED:
        return unittest.SkipTest(outcome.reason)
    is_late = outcome.kind in (Kind.HUNG, Kind.STOPPED)
    return (TimeoutError if is_late else RuntimeError)(f"rank {outcome.rank} {outcome.describe()}")


def _check_entries(failed_ranks: Sequence[tuple[int, Any]]) -> None:
    """Judge a list that a class has made itself, or changed: a failure counts more than a skip."""
    texts, skips = [], []
    for rank, (_, error, _) in failed_ranks:
        if isinstance(error, unittest.SkipTest):
            skips.append(str(error))
        elif isinstance(error, SystemExit) and isinstance(error.code, int) and (skip := skip_for_exit_code(error.code)):
            skips.append(skip.message)
        elif not isinstance(error, SystemExit) or error.code:
            text = "".join(traceback.format_exception(error))
            texts.append(f"Rank {rank} ended by an exception:\n{text}")
    if texts:
        raise RuntimeError("\n".join(texts))
    if skips:
        raise unittest.SkipTest(skips[0])


class _Handle(NamedTuple):
    """A rank of a test in the runner, with the name and the methods of a thread."""

    rank: int
    name: str
    join: Callable[..., None]
    is_alive: Callable[[], bool]


class _Ranks(list[_Handle]):
    """The ranks of a test, prepared at first and run once."""

    def __init__(self, test: ThreadCase, case: Case) -> None:
        super().__init__(
            _Handle(rank, f"rank {rank}", self._join, partial(self._is_left_behind, rank))
            for rank in range(case.world_size)
        )
        self.case = case
        self._cls = type(test)
        self._method = test._testMethodName
        self._tb_locals = test._shows_locals
        self._errors: list[tuple[int, BaseException]] = []
        self._failed: _FailedRanks | None = None

    def _join(self, timeout: float | None = None) -> None:
        """Run all ranks to the end of the test, if they have not run yet. `timeout` has no effect: the test has one."""
        self.run()

    def _is_left_behind(self, rank: int) -> bool:
        """Return whether a rank still ran at the end of the test. Before the test begins it does not."""
        return self._failed is not None and self._failed.result.outcomes[rank].kind in (Kind.HUNG, Kind.STOPPED)

    def run(self) -> _FailedRanks:
        """Run the ranks to the end of the test; a second call returns the same."""
        if self._failed is not None:
            return self._failed
        from torch._C._distributed_c10d import HashStore

        from dist_testing.threaded.in_runner import run_here

        cls = self._cls
        # As for a test on processes; but here all ranks share the runner's generators.
        seed_generators()
        cls.global_store = HashStore()
        while not cls.exception_queue.empty():
            # Entries of ranks that an earlier test has left behind.
            cls.exception_queue.get_nowait()
        result = run_here(current_session().engine, self.case, self._run_rank)
        self._failed = _FailedRanks(result, self._errors)
        return self._failed

    def _run_rank(self, rank: int, reporter: Reporter, limit_s: float) -> None:
        cls = self._cls
        reporter.phase("init")
        pipe = RankPipe(reporter, exit_0_passes=cls.exit_0_passes, tb_locals=self._tb_locals, seeds=False)
        _this_rank.pipe, _this_rank.timeout_s = pipe, group_limit_s(limit_s)
        try:
            cls._run(self._method, rank, self.case.world_size)
        except SystemExit as error:
            # The outcome has been reported; the exception only skips the code that a class runs after its test.
            if not pipe.has_run or pipe.has_passed:
                self._errors.append((rank, error))
                raise
        except BaseException as error:
            self._errors.append((rank, error))
            raise
        finally:
            self._errors += [(rank, error) for error in pipe.raised]
        self._report_caught(rank, reporter)
        # A class with its own `run_test_with_threaded_pg` runs the test in its own way.
        if not pipe.has_run and cls.run_test_with_threaded_pg is ThreadCase.run_test_with_threaded_pg:
            raise UsageError(
                f"{cls.__qualname__}._run has returned, and {self._method} has not run.\n"
                "The class overrides _run, and does not call run_test_with_threaded_pg.\n"
                "Call it on the instance that _run makes."
            )

    def _report_caught(self, rank: int, reporter: Reporter) -> None:
        """Report the exceptions that the class itself has caught on this rank."""
        errors = self._cls.exception_queue
        with _queue_lock:
            caught = [errors.get_nowait() for _ in range(errors.qsize())]
            for entry in caught:
                if entry[0] != rank:
                    errors.put(entry)
        for whose, (_, error, _) in caught:
            if whose == rank:
                self._errors.append((rank, error))
                reporter.ended_by(error)


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
        threads: In the runner, a handle of each rank; empty before `_spawn_threads`.
        global_store: A store in memory that the ranks of the running test share.
        exception_queue: For classes that run their tests themselves: pairs of a rank number and the `sys.exc_info()` of
            an exception that the class has caught.
    """

    MAIN_THREAD_RANK: ClassVar[int] = WorldCase.MAIN_PROCESS_RANK
    exception_queue: ClassVar[queue.Queue[tuple[int, _ExcInfo]]] = queue.Queue()
    global_store: ClassVar[Store]

    def __init__(self, method_name: str = "runTest", methodName: str = "runTest") -> None:
        super().__init__(method_name if methodName == "runTest" else methodName)
        self.threads: list[Any] = []

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
        """Prepare the ranks. They start when the test method begins, after the end of `setUp`."""
        if self.threads:
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
        case = Case(
            self.id(),
            world_size,
            CaseBody("unittest"),
            timeout_s,
            isolation=isolation.name,
            limit_switch=self._limit_switch,
        )
        self.threads = _Ranks(self, case)

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
        if settings := self._settings() | getattr(method, SETTINGS, {}):
            raise UsageError(
                f"{self.id()}: {', '.join(sorted(settings))} on a test whose ranks are threads.\n"
                "Add-ons take part in worlds of processes.\n"
                "Derive the class from MultiProcessTestCase, or leave it out."
            )

    def _join_processes(self, fn: Callable[[], Any]) -> None:
        if not self.threads:
            self._spawn_threads()
        if not isinstance(self.threads, _Ranks):
            raise UsageError(
                f"{self.id()}: no ranks were started, so the test has not run.\n"
                "The class overrides _spawn_threads, and does not call the one of its base class.\n"
                "Call it; or override join_or_run, if the test is to run without ranks."
            )
        try:
            self._join_threads(self.threads, fn)
        except CaseFailedError as error:
            self._expect_nothing_but_failures(error.result)
            raise

    @classmethod
    def _join_threads(cls, threads: Any, fn: Callable[[], Any]) -> None:
        """Run `self.threads`, the ranks that `_spawn_threads` has prepared, in the runner, and judge the test."""
        cls._check_return_codes(threads.run(), threads.case.timeout_s, fn)

    @classmethod
    def _check_return_codes(cls, failed_ranks: Any, timeout: float, fn: Callable[[], Any]) -> None:
        """Report the ranks' verdict to unittest, in the runner. A class may override it and judge otherwise.

        `failed_ranks` has pairs of a rank that did not pass and the `sys.exc_info()` of its exception; its attribute
        `result` is the `CaseResult`. If the class has changed the list, the list counts, and a failure is a
        `RuntimeError` and not a `CaseFailedError` with the report. The limit of the test is in seconds.
        """
        if isinstance(failed_ranks, _FailedRanks) and failed_ranks == failed_ranks.as_made:
            current_session().judge(failed_ranks.result)
        else:
            _check_entries(failed_ranks)

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

        limit, store = timedelta(seconds=_this_rank.timeout_s), self.global_store
        dist.init_process_group(BACKEND, rank=rank, world_size=world_size, store=store, timeout=limit)
        _this_rank.pipe.run(self, test_name)

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


class MultiThreadedTestCase(ThreadCase, TensorComparisons):
    """Runs each test on threads of the runner's process. See `ThreadCase`; `assertEqual` compares tensors."""
