"""Lists the child processes of a rank."""

from __future__ import annotations

import os
import sys
import threading

from dist_testing.core.ground.procfs import children_of, command_of
from dist_testing.core.process.lifetime import is_helper

# Held while a rank lists its open files, and while the ledger's thread has files open: those are no leaks of a test.
LOOKING = threading.Lock()
# Modules that keep a helper process, each with the names of its object, of the helper's pid in it, and of the end of a
# pipe at whose closing the helper ends.
_HELPERS = (
    ("multiprocessing.resource_tracker", "_resource_tracker", "_pid", "_fd"),
    ("multiprocessing.forkserver", "_forkserver", "_forkserver_pid", "_forkserver_alive_fd"),
)


def child_processes() -> frozenset[int]:
    """Return the processes that this one has started, apart from the helpers of multiprocessing."""
    return children_but(helpers_of_multiprocessing()[0])


def children_but(helpers: frozenset[int]) -> frozenset[int]:
    """Return the pids of the processes that this process or one of its helpers has started."""
    try:
        # In the usual case, without children, one call is faster than a file per thread.
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return frozenset()
    children = children_of(os.getpid())
    left = (children - helpers).union(*map(children_of, children & helpers))
    # torch does not expose its manager's pid.
    return frozenset(pid for pid in left if not is_helper(pid, command_of(pid)))


def helpers_of_multiprocessing() -> tuple[frozenset[int], frozenset[int]]:
    """Return the pids of multiprocessing's helpers of this process, and the descriptors of the pipes to them."""
    pids, descriptors = set[int](), set[int]()
    for module, name, pid, descriptor in _HELPERS:
        # The module tells the pid, because a helper that was just started has no command line yet.
        helper = getattr(sys.modules.get(module), name, None)
        for attribute, numbers in ((pid, pids), (descriptor, descriptors)):
            if (number := getattr(helper, attribute, None)) is not None:
                numbers.add(number)
    return frozenset(pids), frozenset(descriptors)
