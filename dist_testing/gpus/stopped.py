"""Finds processes in a queue that are stopped (Ctrl-Z), for which others need not wait."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from dist_testing.procfs import STOPPED, activity_of

_TO_THE_END = "EOF"


def stopped_locks(file: Path) -> list[tuple[int, int]]:
    """Return the first and last byte of each lock on a file whose owners are all stopped.

    A fork shares the lock, so a lock can have several owners. Processes that this one may not look into are left out,
    and so are their locks.
    """
    try:
        status = os.stat(file)
    except OSError:
        return []
    owners: dict[tuple[int, int], list[int]] = {}
    for pid, descriptor in _descriptors_of(status.st_dev, status.st_ino):
        for lock in _locks(pid, descriptor):
            owners.setdefault(lock, []).append(pid)
    return [lock for lock, pids in owners.items() if all(_is_stopped(pid) for pid in pids)]


def _is_stopped(pid: int) -> bool:
    activity = activity_of(pid)
    return activity is not None and activity.state in STOPPED


def _descriptors_of(device: int, inode: int) -> Iterator[tuple[int, str]]:
    for entry in os.listdir("/proc"):
        if not entry.isdecimal() or int(entry) == os.getpid():
            continue
        # A process of another user, or one that ends now.
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f"/proc/{entry}/fd"):
                with contextlib.suppress(OSError):
                    status = os.stat(f"/proc/{entry}/fd/{descriptor}")
                    if (status.st_dev, status.st_ino) == (device, inode):
                        yield int(entry), descriptor


def _locks(pid: int, descriptor: str) -> Iterator[tuple[int, int]]:
    try:
        lines = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text("ascii").splitlines()
    except OSError:
        return
    for line in lines:
        # "lock:	1: OFDLCK ADVISORY  WRITE -1 fe:00:2154522 0 3"
        words = line.split()
        if len(words) >= 9 and words[0] == "lock:" and words[2] == "OFDLCK" and words[8] != _TO_THE_END:
            yield int(words[7]), int(words[8])
