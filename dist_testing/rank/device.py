"""What a test has left running on its GPUs."""

from __future__ import annotations

import sys
import threading
import time
from types import ModuleType

__all__ = ["finish_device_work"]

# For what the test has queued. A kernel that waits for a peer which never comes is no error of this rank; a test may
# even be about it. Seconds.
_LIMIT_S = 5.0


def finish_device_work(limit_s: float = _LIMIT_S) -> None:
    """Let this rank's devices finish what the test has queued, so that its errors are this test's.

    A kernel fails when it runs, and CUDA tells whoever calls next: without this it would be nobody, or on kept ranks
    the next case.

    Args:
        limit_s: How long to wait, in seconds. Work that is not done then is left alone.

    Raises:
        RuntimeError: torch's, if something has failed on the device.
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

    # The call has no limit of its own; and one device that stays busy must not hide another one's error.
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
    """Those on which this process has a context, and no others: to ask for another one would make one there."""
    # Private, and the only way to ask without making one.
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    if has_context is None:
        return [torch.cuda.current_device()]
    return [device for device in range(torch.cuda.device_count()) if has_context(device)]
