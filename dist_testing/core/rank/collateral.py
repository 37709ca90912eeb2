"""Recognises errors that only report what a peer did: their rank is a victim."""

from __future__ import annotations

import dis
import os
import traceback

from dist_testing.core.ground.errors import CollectiveTimeoutError, PeerFailedError
from dist_testing.core.ground.outcomes import Collateral

_TORCH_DISTRIBUTED = f"{os.sep}torch{os.sep}distributed{os.sep}"
# Limit for a chain of causes, which may be a circle.
_MAX_CAUSES = 10
# Of groups of exceptions in each other.
_MAX_DEPTH = 5
# Parts of the errors that torch 2.10 to 2.15 raises when another rank is gone or late. A rank with such an error is a
# victim if another rank has a better reason for its failure; otherwise the error is still a failure.
_TEXTS: tuple[tuple[Collateral, tuple[str, ...]], ...] = (
    (
        "late",
        (
            # gloo, transport/tcp: an operation of a group
            "Timed out waiting",
            # gloo, after the limit of another operation of the rank
            "Application timeout caused pair closure",
            # TCPStore and FileStore: a wait for a key that another rank sets
            "wait timeout after",
            "Timeout waiting for key",
            "Wait timeout",
            "waiting for clients",
            # a work with a limit of its own; the monitored barrier on rank 0
            "Operation timed out!",
            "failed to pass monitoredBarrier",
            # NCCL's watchdog, and the engine nccl2
            "Watchdog caught collective operation timeout",
            "NCCL operation timed out",
        ),
    ),
    (
        "lost",
        (
            # gloo, transport/tcp
            "Connection closed by peer",
            "Connection reset by peer",
            "Broken pipe",
            "SO_ERROR: Connection refused",
            "Gloo connectFullMesh failed",
            # TCPStore
            "Connection was likely closed",
            "The client socket has failed to connect",
            "ailed to recv, got 0 bytes",
            # NCCL
            "remote process exited or there was a network error",
            "NCCL communicator was aborted",
            # monitored barrier on ranks other than 0, and the debug wrapper
            "Please check rank 0 logs for faulty rank",
        ),
    ),
)


def collateral(error: BaseException, depth: int = _MAX_DEPTH) -> Collateral:
    """Return what the error reports about a peer: "lost" or "late"; "" if it reports something else.

    Only runtime and connection errors count: an assertion that quotes such a text is the test's own finding. A group of
    exceptions counts if each of its members does, in groups down to this depth.
    """
    members: tuple[BaseException, ...] = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    if members and depth > 0:
        kinds = [collateral(member, depth - 1) for member in members]
        return "" if "" in kinds else "late" if "late" in kinds else "lost"
    for _ in range(_MAX_CAUSES):
        if isinstance(error, PeerFailedError | CollectiveTimeoutError) or not _is_raised_by_test(error):
            break
        # Python code has raised it, so its author wrote the text. Its cause may still come from a peer.
        if not isinstance(error.__cause__, Exception):
            return ""
        error = error.__cause__
        if isinstance(error, BaseExceptionGroup):
            return collateral(error, depth - 1) if depth > 0 else ""
    else:
        return ""
    if isinstance(error, PeerFailedError):
        return "lost"
    if isinstance(error, CollectiveTimeoutError):
        return "late"
    if not isinstance(error, RuntimeError | ConnectionError):
        return ""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, ConnectionError) and files and not any(_TORCH_DISTRIBUTED in file for file in files):
        # A connection of the test's own, such as a pipe to a process that it has started.
        return ""
    try:
        text = str(error)
    except Exception:
        # Only an error class of the test has a broken __str__, and it reports nothing about a peer.
        return ""
    return next((kind for kind, patterns in _TEXTS if any(pattern in text for pattern in patterns)), "")


def _is_raised_by_test(error: BaseException) -> bool:
    """Whether a `raise` outside torch.distributed has raised the error, and not native code that was called there."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return False
    code = last.tb_frame.f_code
    return _TORCH_DISTRIBUTED not in code.co_filename and dis.opname[code.co_code[last.tb_lasti]] == "RAISE_VARARGS"
