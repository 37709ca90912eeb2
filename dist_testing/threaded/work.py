"""The handle of a call that may not be over yet."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work
from torch.futures import Future

from dist_testing.threaded.meeting import Transfer
from dist_testing.threaded.members import acting_as, current_member

if TYPE_CHECKING:
    from dist_testing.threaded.members import ThreadWorld
    from dist_testing.threaded.operation import Call, Operation

__all__ = ["JoinedWork", "ThreadWork"]


class ThreadWork(Work):
    """One rank's side of an operation, with c10d's meaning of every method.

    Args:
        world: The world.
        operation: What it is a side of.
        call: The rank's call.
        results: What `result()` and the future give: the tensors that the call writes.
        timeout_s: How long after the call the operation may take, in seconds.
    """

    def __init__(
        self, world: ThreadWorld, operation: Operation, call: Call, results: Sequence[Tensor], timeout_s: float
    ) -> None:
        super().__init__()
        self._world = world
        self._operation = operation
        self._call = call
        self._results = results
        self._deadline_s = time.monotonic() + timeout_s
        self._future: Future[Any] | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the operation is over, or has failed for all because the group's time limit is over.

        Args:
            timeout: A limit of this wait alone, after which the operation goes on; none if zero or less.

        Raises:
            CollectiveError: If it failed, or is not over in time.
        """
        limit_s = max(self._deadline_s - time.monotonic(), 0.0)
        own_limit_s = timeout.total_seconds() if timeout is not None else 0.0
        is_own = 0.0 < own_limit_s < limit_s
        self._world.wait(self._operation, self._call, own_limit_s if is_own else limit_s, fails_operation=not is_own)
        return True

    def synchronize(self) -> None:
        """The same as `wait`: there is no stream that could wait instead."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether it is over, well or not."""
        if not self._operation.is_done:
            # Who asks again and again would else keep its turn for good.
            self._world.give_way()
        return self._operation.is_done

    def is_success(self) -> bool:
        """Whether it is over and has not failed."""
        return self._operation.is_done and self._operation.failure is None

    def exception(self) -> BaseException | None:
        """Why it failed; None if it has not."""
        failure = self._operation.failure
        return None if failure is None else failure.error(self._call)

    def result(self) -> list[Tensor]:
        """The tensors that the call writes. Waits for nothing, as in c10d."""
        return list(self._results)

    def source_rank(self) -> int:
        """The sender, by its number in the group. Only for a receive that is over."""
        return self._source_rank()

    def _source_rank(self) -> int:
        assert isinstance(self._operation, Transfer), f"{self._call} has no sender"
        return self._operation.peer

    def get_future(self) -> Future[Any]:
        """A future of the tensors that the call writes. Its `wait` counts as a wait of the rank."""
        if self._future is None:
            self._future = future = _WaitingFuture(self)
            member = current_member()

            def settle() -> None:
                # What the user chained to the future runs on the thread that ends the operation, but is this rank's.
                with acting_as(member):
                    self._settle(future)

            with self._world.lock:
                is_over = self._operation.is_done
                if not is_over:
                    self._operation.on_done.append(settle)
            if is_over:
                settle()
        return self._future

    def _settle(self, future: Future[Any]) -> None:
        failure = self._operation.failure
        if failure is None:
            future.set_result(list(self._results))
        else:
            future.set_exception(failure.error(self._call))


class JoinedWork(ThreadWork):
    """Several works as one: what a coalescing manager gives.

    Args:
        works: At least one, in the order of their calls.
    """

    def __init__(self, works: Sequence[ThreadWork]) -> None:
        last = works[-1]
        results = [result for work in works for result in work._results]
        super().__init__(last._world, last._operation, last._call, results, 0.0)
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until all are over; `timeout` is for each."""
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Whether all are over."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Whether all are over and none has failed."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        """Why the first one that failed did; None if none has."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def get_future(self) -> Future[Any]:
        """A future of the tensors of all of them."""
        joined = torch.futures.collect_all([work.get_future() for work in self._works])
        return joined.then(lambda done: [tensor for one in done.value() for tensor in one.value()])


class _WaitingFuture(Future[Any]):
    """A future whose `wait` is one of a rank, so that a deadlock in it is seen."""

    def __init__(self, work: ThreadWork) -> None:
        super().__init__()
        self._work = work

    def wait(self) -> Any:
        """The value; raises what the work raises."""
        self._work.wait()
        return super().wait()
