"""The ranks of a class whose ranks are threads of the runner, as the class sees them in the runner."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterable
from typing import Any

from dist_testing.core.engine.running_world import group_limit_s
from dist_testing.core.ground.case import Case, CaseResult
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.outcomes import Kind
from dist_testing.core.rank.reporter import Reporter
from dist_testing.core.unittest.on_rank import RankPipe, seed_generators
from dist_testing.core.unittest.plain import current_session
from dist_testing.threaded.failed_ranks import ExcInfo, FailedRanks

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True


class _Rank(threading.local):
    """The arguments of the calling thread's test."""

    pipe: RankPipe
    timeout_s: float


this_rank = _Rank()
# Held while a rank takes entries from a class's queue and puts those of other ranks back.
_queue_lock = threading.Lock()


def joined(
    threads: Iterable[threading.Thread], errors: queue.Queue[tuple[int, ExcInfo]], limit_s: float
) -> list[tuple[int, ExcInfo]]:
    """Wait for threads that a class has started itself, and return the entries of its queue.

    Args:
        threads: The threads, by rank.
        errors: The class's `exception_queue`.
        limit_s: Limit of all of them, in seconds. A thread that runs on is an entry.
    """
    until_s = time.monotonic() + limit_s
    entries: list[tuple[int, ExcInfo]] = []
    for rank, thread in enumerate(threads):
        thread.join(max(0.0, until_s - time.monotonic()))
        if thread.is_alive():
            error = TimeoutError(f"thread {thread.name} still runs")
            entries.append((rank, (TimeoutError, error, None)))
    while not errors.empty():
        entries.append(errors.get_nowait())
    return entries


class RankThread:
    """A handle of one rank, with the names that a `threading.Thread` has for it.

    Attributes:
        rank: Which rank.
        name: For messages.
    """

    def __init__(self, ranks: RankThreads, rank: int) -> None:
        self._ranks = ranks
        self.rank = rank
        self.name = f"rank {rank}"

    def join(self, timeout: float | None = None) -> None:
        """Run all ranks to the end of the test, if they have not run yet. The test has its own limit.

        Args:
            timeout: Has no effect.
        """
        del timeout
        self._ranks.run()

    def is_alive(self) -> bool:
        """Return whether the rank runs on after the limit of the test. Before the test begins it does not."""
        return self._ranks.is_left_behind(self.rank)


class RankThreads(list[RankThread]):
    """The ranks of a test: prepared at first, and run once."""

    def __init__(self, cls: type[Any], method: str, case: Case, *, tb_locals: bool, must_run: bool) -> None:
        """Prepare the ranks.

        Args:
            cls: The test class, a `ThreadCase`.
            method: Its method.
            case: The case.
            tb_locals: Whether tracebacks show local variables.
            must_run: Whether a rank has failed if the class's `_run` returns without a call of
                `run_test_with_threaded_pg`.
        """
        super().__init__(RankThread(self, rank) for rank in range(case.world_size))
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
        seed_generators(is_fresh=False)
        cls.global_store = HashStore()
        while not cls.exception_queue.empty():
            # Entries of ranks that an earlier test has left behind.
            cls.exception_queue.get_nowait()
        return current_session().engine.run_here(self.case, self._run_rank)

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
            self._errors += [(rank, error) for error in pipe.errors]
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
