"""The ranks of a class whose ranks are threads of the runner, as the class sees them in the runner."""

from __future__ import annotations

import threading
import traceback
import unittest
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

from dist_testing.core.engine.running_world import group_limit_s
from dist_testing.core.ground.case import Case, CaseResult
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.outcomes import Kind, RankOutcome
from dist_testing.core.ground.skips import skip_for_exit_code
from dist_testing.core.rank.generators import seed_generators
from dist_testing.core.rank.reporter import Reporter
from dist_testing.core.unittest.plain import current_session
from dist_testing.core.unittest.unittest_rank import RankPipe
from dist_testing.threaded.in_runner import run_here

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True


class _Rank(threading.local):
    """The arguments of the calling thread's test."""

    pipe: RankPipe
    timeout_s: float


this_rank = _Rank()
# Held while a rank takes entries from a class's queue and puts those of other ranks back.
_queue_lock = threading.Lock()


ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


class FailedRanks(list[tuple[int, ExcInfo]]):
    """The ranks that did not pass, each with the `sys.exc_info()` of its exception, as torch's classes get them.

    Attributes:
        result: The result of the case.
    """

    def __init__(self, result: CaseResult, errors: Iterable[tuple[int, BaseException]]) -> None:
        """Make the list from the exceptions of the ranks, in the order in which they were raised."""
        raised = list(errors)
        known = {rank for rank, _ in raised}
        # A rank that runs on, or that could not be started, has no exception.
        raised += [
            (outcome.rank, _stand_in(outcome))
            for outcome in result.outcomes
            if outcome.kind is not Kind.PASSED and outcome.rank not in known
        ]
        super().__init__((rank, (type(error), error, error.__traceback__)) for rank, error in raised)
        self.result = result
        self._first = list(self)

    @property
    def is_changed(self) -> bool:
        """Whether the class has changed the list since it was made."""
        return self._first != self


def _stand_in(outcome: RankOutcome) -> BaseException:
    if outcome.kind is Kind.SKIPPED:
        return unittest.SkipTest(outcome.reason)
    is_late = outcome.kind in (Kind.HUNG, Kind.STOPPED)
    return (TimeoutError if is_late else RuntimeError)(f"rank {outcome.rank} {outcome.describe()}")


def check_entries(failed_ranks: Sequence[tuple[int, Any]]) -> None:
    """Judge a list that a class has made itself, or changed: a failure counts more than a skip.

    Raises:
        RuntimeError: If a rank failed, or did not end in time.
        unittest.SkipTest: If ranks have skipped, and none failed.
    """
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


class RankHandle:
    """A handle of one rank, with the names that a `threading.Thread` has for it."""

    def __init__(self, ranks: RankThreads, rank: int) -> None:
        self._ranks = ranks
        self.rank = rank
        self.name = f"rank {rank}"

    def join(self, timeout: float | None = None) -> None:
        """Run all ranks to the end of the test, if they have not run yet. `timeout` has no effect: the test has one."""
        del timeout
        self._ranks.run()

    def is_alive(self) -> bool:
        """Return whether the rank runs on after the limit of the test. Before the test begins it does not."""
        return self._ranks.is_left_behind(self.rank)


class RankThreads(list[RankHandle]):
    """The ranks of a test: prepared at first, and run once."""

    def __init__(self, cls: type[Any], method: str, case: Case, *, tb_locals: bool, must_run: bool) -> None:
        """Prepare the ranks of a method of a `ThreadCase`.

        Args:
            cls: The test class.
            method: Its method.
            case: The case.
            tb_locals: Whether tracebacks show local variables.
            must_run: Whether the class leaves calling `run_test_with_threaded_pg` to its `_run`, which may forget it.
        """
        super().__init__(RankHandle(self, rank) for rank in range(case.world_size))
        self.case = case
        self._cls = cls
        self._method = method
        self._tb_locals = tb_locals
        self._must_run = must_run
        self._errors: list[tuple[int, BaseException]] = []
        self._failed: FailedRanks | None = None

    def is_left_behind(self, rank: int) -> bool:
        """Return whether a rank still ran at the end of the test."""
        return self._failed is not None and self._failed.result.outcomes[rank].kind in (Kind.HUNG, Kind.STOPPED)

    def run(self) -> FailedRanks:
        """Run the ranks to the end of the test; a second call returns the same."""
        if self._failed is None:
            self._failed = FailedRanks(self._run(), self._errors)
        return self._failed

    def _run(self) -> CaseResult:
        from torch._C._distributed_c10d import HashStore

        cls = self._cls
        # As for a test on processes; but here all ranks share the runner's generators.
        seed_generators()
        cls.global_store = HashStore()
        while not cls.exception_queue.empty():
            # Entries of ranks that an earlier test has left behind.
            cls.exception_queue.get_nowait()
        return run_here(current_session().engine, self.case, self._run_rank)

    def _run_rank(self, rank: int, reporter: Reporter, limit_s: float) -> None:
        cls = self._cls
        reporter.phase("init")
        this_rank.pipe = pipe = RankPipe(
            reporter, exit_0_passes=cls.exit_0_passes, tb_locals=self._tb_locals, seeds=False
        )
        this_rank.timeout_s = group_limit_s(limit_s)
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
        if not pipe.has_run and self._must_run:
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
