"""Results of processes that a test drives through queues."""

from __future__ import annotations

import time
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess
    from multiprocessing.queues import Queue

__all__ = ["retrieve_result_from_completion_queue"]


def retrieve_result_from_completion_queue(
    process: BaseProcess, completion_queue: Queue[Any], timeout: float | None = None
) -> Any:
    """The next result that a process puts into its queue.

    Args:
        process: It may end while it is waited for; that is noticed at once.
        completion_queue: A queue of `multiprocessing`.
        timeout: Seconds; None to wait until the process ends.

    Returns:
        The result; or, not raised, a RuntimeError if the process has ended without one, or the time is over.
    """
    started_s = time.monotonic()
    reader = completion_queue._reader  # type: ignore[attr-defined]  # the queue has no public one
    # A result may be in the pipe when its process is gone, so the pipe is looked at first.
    ready = wait([reader, process.sentinel], timeout)
    if reader in ready or not completion_queue.empty():
        return completion_queue.get()
    if ready:
        process.join()
        return RuntimeError(f"Exited with {process.exitcode}")
    return RuntimeError(f"Process timed out after {time.monotonic() - started_s}s")
