"""A mark that processes inherit, by which the descendants of a process are known when their parents are gone.

A child may have no environment, another session, and no descriptor of its parent. The mark is a limit that Linux keeps
and has not enforced since version 2.4: the number of file locks. A process inherits it through `fork` and `exec`.
"""

from __future__ import annotations

import contextlib
import os
import resource

# RLIMIT_LOCKS of <asm-generic/resource.h>, which Python does not name.
_LIMIT = 10
_FIELD = b"Max file locks"
# No user gives a limit of this size.
_BASE = 1 << 40


def mark_descendants() -> None:
    """Mark all processes that this one makes from now on, and itself; without effect where the kernel refuses."""
    with contextlib.suppress(OSError, ValueError):
        _, hard = resource.getrlimit(_LIMIT)
        resource.setrlimit(_LIMIT, (_BASE + os.getpid(), hard))


def mark_of(pid: int) -> int | None:
    """Return the pid of the nearest ancestor of a process that has called `mark_descendants`, or its own pid.

    Returns None without such an ancestor, or if the process has ended.
    """
    try:
        with open(f"/proc/{pid}/limits", "rb") as limits:
            found = next((line for line in limits if line.startswith(_FIELD)), b"")
    except OSError:
        return None
    value = b"".join(found.removeprefix(_FIELD).split()[:1])
    return int(value) - _BASE if value.isdigit() and int(value) > _BASE else None
