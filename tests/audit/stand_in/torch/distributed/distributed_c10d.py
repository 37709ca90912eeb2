"""A process group whose ranks meet at a socket of rank 0, and fail if a peer's connection ends. It has `barrier`."""

from __future__ import annotations

import socket
import threading
import time

_LIMIT_S = 60.0


class _Group(threading.local):
    """The group of this thread, so that threads can be ranks."""

    def __init__(self) -> None:
        self.rank = -1
        self.size = -1
        self.peers: list[socket.socket] = []


_group = _Group()


def init_process_group(backend: str, init_method: str, rank: int, world_size: int) -> None:
    """Connect all ranks with rank 0, at a socket beside the file of `init_method`."""
    path = init_method.removeprefix("file://") + ".s"
    peers = []
    if rank == 0:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path)
            listening.listen(world_size)
            listening.settimeout(_LIMIT_S)
            peers = [listening.accept()[0] for _ in range(world_size - 1)]
    else:
        peers = [_connected(path)]
    for peer in peers:
        peer.settimeout(_LIMIT_S)
    _group.rank, _group.size, _group.peers = rank, world_size, peers


def _connected(path: str) -> socket.socket:
    until_s = time.monotonic() + _LIMIT_S
    while True:
        peer = socket.socket(socket.AF_UNIX)
        try:
            peer.connect(path)
        except OSError:
            peer.close()
            if time.monotonic() > until_s:
                raise
            time.sleep(0.01)
        else:
            return peer


def barrier() -> None:
    """Wait until all ranks have come."""
    # Rank 0 hears of all others first, and then tells them.
    for receives in (True, False) if _group.rank == 0 else (False, True):
        for peer in _group.peers:
            if not receives:
                peer.sendall(b"x")
            elif peer.recv(1) != b"x":
                raise RuntimeError("Connection closed by peer")


def destroy_process_group() -> None:
    """Leave the group."""
    for peer in _group.peers:
        peer.close()
    _group.rank, _group.size, _group.peers = -1, -1, []


def is_initialized() -> bool:
    """Return whether this thread is a rank."""
    return _group.rank >= 0


def get_rank() -> int:
    """Return the rank of this thread."""
    return _group.rank


def get_backend() -> str:
    """Return the name of the group's backend."""
    return "stand_in"


def get_world_size() -> int:
    """Return how many ranks there are."""
    return _group.size
