"""Recognises errors that only report what a peer did: their rank is a victim."""

from __future__ import annotations

from dist_testing.errors import CollectiveTimeoutError, PeerFailedError
from dist_testing.outcomes import Collateral

__all__ = ["collateral"]

# Parts of the errors that torch 2.10 to 2.13 raises when another rank is gone or late. A rank with such an error is a
# victim if another rank has a better reason for its failure; otherwise the error is still a failure.
_TEXTS: tuple[tuple[Collateral, tuple[str, ...]], ...] = (
    (
        "late",
        (
            # gloo, transport/tcp: an operation of a group
            "Timed out waiting",
            # TCPStore and FileStore: a wait for a key that another rank sets
            "wait timeout after",
            "Timeout waiting for key",
            # NCCL's watchdog
            "Watchdog caught collective operation timeout",
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


def collateral(error: BaseException) -> Collateral:
    """Return what the error reports about a peer: "lost" or "late"; "" if it reports something else.

    Only runtime and connection errors count: an assertion that quotes such a text is the test's own finding.
    """
    if isinstance(error, PeerFailedError):
        return "lost"
    if isinstance(error, CollectiveTimeoutError):
        return "late"
    if not isinstance(error, RuntimeError | ConnectionError):
        return ""
    try:
        text = str(error)
    except Exception:
        # Only an error class of the test has a broken __str__, and it reports nothing about a peer.
        return ""
    return next((kind for kind, patterns in _TEXTS if any(pattern in text for pattern in patterns)), "")
