"""The handle of a call that may not be done yet."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work
from torch.futures import Future

from dist_testing.core.ground.errors import UsageError
from dist_testing.threaded.members import ThreadWorld, acting_as, current_member
from dist_testing.threaded.operation import Call, Operation, Transfer


class ThreadWork(Work):
    """One rank's handle of an operation; every method means what it means for `torch.distributed.Work`.

    `results` are the tensors that the call writes; `timeout_s` is the limit of the operation from the call on.
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
        """Block until the operation is done; see `torch.distributed.Work.wait`. Returns True, always.

        At the time limit of the call, the operation fails on all ranks. `timeout` is the limit of this wait alone,
        after which the operation goes on; zero or less is no limit.

        Raises:
            CollectiveError: If the operation failed, or is not done in time.
        """
        limit_s = max(self._deadline_s - time.monotonic(), 0.0)
        own_limit_s = timeout.total_seconds() if timeout is not None else 0.0
        is_own = 0.0 < own_limit_s < limit_s
        self._world.wait(self._operation, self._call, own_limit_s if is_own else limit_s, fails_operation=not is_own)
        return True

    def synchronize(self) -> None:
        """Do the same as `wait()`, because the operation runs on no stream that could wait instead."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether the operation has ended, with or without success. Does not block."""
        if not self._operation.is_done:
            # A rank that polls in a loop would otherwise keep its turn for good.
            self._world.give_way()
        return self._operation.is_done

    def is_success(self) -> bool:
        """Return whether the operation has ended with success."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Return the error of a failed operation; None if it has not failed."""
        failure = self._operation.failure
        return None if failure is None else failure.error(self._call)

    def result(self) -> list[Tensor]:
        """Return the tensors that the call writes. Does not wait for them, as in c10d."""
        return list(self._results)

    def source_rank(self) -> int:
        """Return the sender of a receive that is done, by its number in the group."""
        if not isinstance(self._operation, Transfer) or self._operation.is_send:
            raise UsageError(
                f"source_rank() of the work of {self._call}.\n"
                "Only a receive has a source rank.\n"
                "Call it on the work of irecv, after its wait()."
            )
        return self._operation.peer

    # The name that torch.distributed.recv calls.
    _source_rank = source_rank

    def get_future(self) -> Future[Any]:
        """Return a future of the list of tensors that the call writes.

        The world sees its `wait` as a wait of the rank, so it takes part in the detection of deadlocks.
        """
        if self._future is not None:
            return self._future
        self._future = future = _WaitingFuture(self)
        member = current_member()

        def settle() -> None:
            # The thread that ends the operation runs the functions chained to the future; they belong to this rank.
            with acting_as(member):
                if (error := self.exception()) is not None:
                    future.set_exception(error)
                else:
                    future.set_result(self.result())

        with self._world:
            if not self._operation.is_done:
                self._operation.on_done.append(settle)
                return future
        settle()
        return future


class JoinedWork(ThreadWork):
    """At least one work, as one, in the order of the calls: what a coalescing manager returns."""

    def __init__(self, works: Sequence[ThreadWork]) -> None:
        last = works[-1]
        results = [result for work in works for result in work._results]
        super().__init__(last._world, last._operation, last._call, results, 0.0)
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until all operations are done; `timeout` is the limit for each of them, as in `ThreadWork.wait`."""
        for work in self._works:
            work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Return whether all operations have ended. Does not block."""
        return all(work.is_completed() for work in self._works)

    def exception(self) -> BaseException | None:
        """Return the error of the first work that failed; None if none has."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def get_future(self) -> Future[Any]:
        """Return a future of one list with the tensors of all works."""
        joined = torch.futures.collect_all([work.get_future() for work in self._works])
        return joined.then(lambda done: [tensor for one in done.value() for tensor in one.value()])


class _WaitingFuture(Future[Any]):
    def __init__(self, work: ThreadWork) -> None:
        super().__init__()
        self._work = work

    def wait(self) -> Any:
        self._work.wait()
        return super().wait()
