"""Waits for the work that a test has queued on its GPUs."""

from __future__ import annotations

import sys
import threading
import time
from types import ModuleType

# Seconds for the queued work. A kernel that waits longer for a peer is no error of this rank; a test may want that.
_LIMIT_S = 5.0


def finish_device_work(limit_s: float = _LIMIT_S) -> None:
    """Wait until this rank's devices have finished the queued work, so that its errors belong to this test.

    CUDA reports a failed kernel to the next caller. Without this call the error would be lost, or would fail the next
    case of a worker pool. After `limit_s` seconds, unfinished work goes on.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    errors: list[BaseException] = []

    def wait(device: int) -> None:
        try:
            torch.cuda.synchronize(device)
        except BaseException as error:
            errors.append(error)

    # `synchronize` takes no limit, and a busy device must not hide the error of another one.
    threads = [
        threading.Thread(target=wait, args=(device,), name="waits for the device", daemon=True)
        for device in _devices_in_use(torch)
    ]
    deadline_s = time.monotonic() + limit_s
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline_s - time.monotonic()))
    if errors:
        raise errors[0]


def _devices_in_use(torch: ModuleType) -> list[int]:
    """Return the devices on which this process has a context. A wait for another device would create one there."""
    # Private, but the only query that creates no context.
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    if has_context is None:
        return [torch.cuda.current_device()]
    return [device for device in range(torch.cuda.device_count()) if has_context(device)]
