"""The handle of a call that may not be done yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from torch import Tensor
from torch._C._distributed_c10d import Work
from torch.futures import Future

from dist_testing.core.ground.errors import UsageError
from dist_testing.threaded.members import ThreadWorld, acting_as, current_member
from dist_testing.threaded.operation import Call, Operation, Transfer


class ThreadWork(Work):
    """One rank's handle of its calls, usually one; every method means what it means for `torch.distributed.Work`.

    A coalescing manager returns one handle for several calls, in their order. `results` are the tensors that the calls
    write; `timeout_s` is the limit of the operations from now on.
    """

    def __init__(
        self, world: ThreadWorld, calls: Sequence[tuple[Operation, Call]], results: Sequence[Tensor], timeout_s: float
    ) -> None:
        super().__init__()
        self._world = world
        self._calls = calls
        self._results = results
        self._deadline_s = time.monotonic() + timeout_s
        self._has_own_limit = timeout_s < world.limit_s
        self._future: Future[Any] | None = None

    @classmethod
    def joined(cls, works: Sequence[ThreadWork]) -> ThreadWork:
        """Return one handle for the calls of several, at least one."""
        calls = [call for work in works for call in work._calls]
        results = [result for work in works for result in work._results]
        limit_s = max(work._deadline_s for work in works) - time.monotonic()
        joined = cls(works[0]._world, calls, results, limit_s)
        joined._has_own_limit = any(work._has_own_limit for work in works)
        return joined

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the operations are done; see `torch.distributed.Work.wait`. Returns True, always.

        At the time limit of the call, the operation fails on all ranks. `timeout` is the limit of this wait alone, for
        each operation, after which the operation goes on; zero or less is no limit.

        Raises:
            CollectiveError: If an operation failed, or is not done in time.
        """
        own_limit_s = timeout.total_seconds() if timeout is not None else 0.0
        for operation, call in self._calls:
            limit_s = max(self._deadline_s - time.monotonic(), 0.0)
            is_own = 0.0 < own_limit_s < limit_s
            self._world.wait(
                operation,
                call,
                own_limit_s if is_own else limit_s,
                fails_operation=not is_own,
                ends_by_itself=is_own or self._has_own_limit,
            )
        return True

    def synchronize(self) -> None:
        """Do the same as `wait()`, because the operation runs on no stream that could wait instead."""
        self.wait()

    @property
    def _is_done(self) -> bool:
        return all(operation.is_done for operation, _ in self._calls)

    def is_completed(self) -> bool:
        """Return whether the operations have ended, with or without success. Does not block."""
        if not self._is_done:
            # A rank that polls in a loop would otherwise keep its turn for good.
            self._world.give_way()
        return self._is_done

    def is_success(self) -> bool:
        """Return whether the operations have ended with success."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """Return the error of the first operation that failed; None if none has."""
        errors = (operation.failure.error(call) for operation, call in self._calls if operation.failure is not None)
        return next(errors, None)

    def result(self) -> list[Tensor]:
        """Return the tensors that the calls write. Does not wait for them, as in c10d."""
        return list(self._results)

    def source_rank(self) -> int:
        """Return the sender of a receive that is done, by its number in the group."""
        operation, call = self._calls[-1]
        if not isinstance(operation, Transfer) or operation.is_send:
            raise UsageError(
                f"source_rank() of the work of {call}.\n"
                "Only a receive has a source rank.\n"
                "Call it on the work of irecv, after its wait()."
            )
        return operation.peer

    # The name that torch.distributed.recv calls.
    _source_rank = source_rank

    def get_future(self) -> Future[Any]:
        """Return a future of the list of tensors that the calls write.

        The world sees its `wait` as a wait of the rank, so it takes part in the detection of deadlocks.
        """
        if self._future is not None:
            return self._future
        self._future = future = _WaitingFuture(self)
        self._when_done(future.settle, iter(self._calls))
        return future

    def _when_done(self, settle: Callable[[], None], calls: Iterator[tuple[Operation, Call]]) -> None:
        """Call a function when the rest of the operations have ended."""
        for operation, _ in calls:
            with self._world:
                if not operation.is_done:
                    operation.on_done.append(partial(self._when_done, settle, calls))
                    return
        settle()


class _WaitingFuture(Future[Any]):
    def __init__(self, work: ThreadWork) -> None:
        super().__init__()
        self._work = work
        self._member = current_member()
        self._has_functions = False
        # A chained function may chain another one, where it runs on this thread.
        self._settling = threading.RLock()

    def wait(self) -> Any:
        self._work.wait()
        return super().wait()

    def then(self, callback: Callable[[Future[Any]], Any]) -> Future[Any]:
        self._expect_functions()
        return super().then(callback)

    def add_done_callback(self, callback: Callable[[Future[Any]], Any]) -> None:
        self._expect_functions()
        super().add_done_callback(callback)

    def _expect_functions(self) -> None:
        with self._settling:
            self._has_functions = True

    def settle(self) -> None:
        """Take the end of the work, on the thread that ends it. Chained functions belong to the rank of the future."""
        with acting_as(self._member):
            with self._settling:
                # Where one rank runs at a time, so do they.
                if not self._has_functions or self._work._world.turns.are_on:
                    self._set()
                    return
            # They may wait for other ranks, as those of PowerSGD do: also for the rank whose thread this is.
            threading.Thread(target=self._set, name="functions of a future", daemon=True).start()

    def _set(self) -> None:
        if (error := self._work.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(self._work.result())
