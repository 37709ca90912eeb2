"""What a test has left running on its GPU."""

from __future__ import annotations

import sys
import threading

__all__ = ["finish_device_work"]

# For what the test has queued. A kernel that waits for a peer which never comes is no error of this rank; a test may
# even be about it. Seconds.
_LIMIT_S = 5.0


def finish_device_work(limit_s: float = _LIMIT_S) -> None:
    """Let this rank's device finish what the test has queued, so that its errors are this test's.

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
    device = torch.cuda.current_device()
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            torch.cuda.synchronize(device)
        except BaseException as error:
            errors.append(error)

    # The call has no limit of its own.
    thread = threading.Thread(target=wait, name="waits for the device", daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
