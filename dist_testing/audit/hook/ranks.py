"""Notices the processes and threads that become ranks, and plants the fault on one of them."""

from __future__ import annotations

import functools
import os
import signal
import sys
import sysconfig
import unittest
from collections.abc import Callable

# Taken now, because a suite may replace it in its module.
from time import sleep
from types import FrameType, ModuleType
from typing import Any

from . import leaving, record

# Functions of torch.distributed in which ranks meet.
_COLLECTIVES = (
    "all_gather all_gather_coalesced all_gather_into_tensor all_gather_object all_reduce all_reduce_coalesced "
    "all_to_all all_to_all_single barrier batch_isend_irecv broadcast broadcast_object_list gather gather_object irecv "
    "isend monitored_barrier recv reduce reduce_scatter reduce_scatter_tensor scatter scatter_object_list send"
)
_TEXT = "planted by dist_testing.audit"
_LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})

# What this process has noted already: (pid, case, rank, moment). The pid, because forks inherit the set.
_noted: set[tuple[int, str, int, str]] = set()


def watch(c10d: ModuleType) -> None:
    """Stand around `init_process_group` and the collective calls of torch's module."""
    init = c10d.init_process_group

    @functools.wraps(init)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = init(*args, **kwargs)
        _reach(c10d, "init", "init_process_group")
        return result

    c10d.init_process_group = init_process_group  # type: ignore[attr-defined]
    if record.plan.collectives:
        for name in _COLLECTIVES.split():
            if hasattr(c10d, name):
                setattr(c10d, name, _watched(c10d, name, getattr(c10d, name)))


def _watched(c10d: ModuleType, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if c10d.is_initialized():
            _reach(c10d, "own" if _is_own(sys._getframe(1)) else "collective", name)
        return function(*args, **kwargs)

    return call


def _reach(c10d: ModuleType, moment: str, call: str) -> None:
    """Note that a rank has reached a moment, and plant the fault if it is that of the plan."""
    rank = int(c10d.get_rank())
    if rank < 0:
        return
    key = (os.getpid(), record.current_case().id, rank, moment)
    if key not in _noted:
        _noted.add(key)
        backend = str(c10d.get_backend())
        record.note("rank", rank=rank, world=int(c10d.get_world_size()), moment=moment, backend=backend)
    plan = record.plan
    if plan.fault is not None and rank == plan.rank and moment == plan.moment:
        _plant(plan, call)


def _is_own(frame: FrameType | None) -> bool:
    """Return whether the test itself makes a call: a frame is of the test's file, or of the script of this process."""
    file = record.current_case().file
    while frame is not None:
        name = frame.f_code.co_filename
        if file and name == file:
            return True
        if frame.f_globals.get("__name__") == "__main__" and not name.startswith(("<", *_LIBRARIES)):
            return True
        frame = frame.f_back
    return False


def _plant(plan: record.Plan, call: str) -> None:
    door = leaving.doors.open[-1] if leaving.doors.open else None
    how = ""
    if plan.fault == "return":
        # A script ends where it returns. In a forked process an exception would go on in a copy of the harness.
        how = door[1] if door is not None else "the script, by sys.exit(0)" if leaving.is_script() else ""
        if not how:
            return
    if not record.claim_fault():
        return
    record.note("fault", call=call, how=how)
    if plan.fault == "raise":
        raise AssertionError(_TEXT)
    if plan.fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif plan.fault in ("exit0", "exit3"):
        os._exit(int(plan.fault[-1]))
    elif plan.fault == "skip":
        raise _skip()
    elif plan.fault == "return":
        raise SystemExit(0) if door is None else leaving.Leave(door[0])
    elif plan.fault == "hang":
        sleep(plan.hold_s)


def _skip() -> BaseException:
    """Return a skip that both unittest and pytest know, if the process has loaded pytest."""
    pytest = sys.modules.get("pytest")
    if pytest is None:
        return unittest.SkipTest(_TEXT)

    class PlantedSkip(pytest.skip.Exception, unittest.SkipTest):  # type: ignore[misc, name-defined]
        """A skip for whichever framework looks at it first."""

    return PlantedSkip(_TEXT)
