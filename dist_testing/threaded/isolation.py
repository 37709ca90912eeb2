"""Gives each rank that is a thread its own `torch.distributed` state.

While at least one world of threads is alive, this module replaces, and afterwards restores:
- c10d's state of the process (default group, groups, their names): each rank's threads see the rank's own; all other
  threads see the process's, as before; a module that a rank imports sees no default group;
- torch's registry of groups by name, which becomes per thread;
- the meaning of the backend name "threaded", which torch's own test code also uses;
- `Thread.start`, so that threads which a rank starts belong to the rank;
- the barrier of a new group (`TORCH_DIST_INIT_BARRIER=1`), if the ranks run one at a time;
- what `torch.distributed.init_process_group` leaves in the process: an exception hook, and its init method.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d

from dist_testing.threaded import BACKEND
from dist_testing.threaded.group import create_group
from dist_testing.threaded.members import Member, RankThread, acting_as, current_member

# What `dist.group.WORLD` returns.
_DEFAULT_GROUP = "default_pg"
# Properties that c10d derives from the others.
_DERIVED = {"pg_config_info"}

_lock = threading.Lock()
# Number of ranks that are alive, in all worlds. With the last one, `_undo` restores the process.
_holders = 0
_undo = contextlib.ExitStack()


def hold() -> None:
    """Prepare the process for a rank. Each call needs one later call of `release`."""
    global _holders
    with _lock:
        if _holders == 0:
            with contextlib.ExitStack() as undo:
                _prepare(undo)
                _undo.push(undo.pop_all())
        _holders += 1


def release() -> None:
    """Restore the process if this was the last rank; call it after all threads of the rank have ended."""
    global _holders
    with _lock:
        _holders -= 1
        if _holders == 0:
            _undo.close()


def _prepare(undo: contextlib.ExitStack) -> None:
    def replace(owner: Any, name: str, value: object) -> None:
        undo.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    _keep_cuda_stand_in()
    replace(distributed_c10d._world, "__class__", _routed(type(distributed_c10d._world)))  # type: ignore[arg-type]  # typeshed
    replace(distributed_c10d, "_store_based_barrier", _without_turns(distributed_c10d._store_based_barrier))
    # init_process_group wraps the hook once more for each rank, and sets its init method.
    replace(sys, "excepthook", sys.excepthook)
    replace(distributed_c10d, "_default_pg_init_method", distributed_c10d._default_pg_init_method)

    undo.callback(_distributed_c10d._set_thread_isolation_mode, False)  # type: ignore[attr-defined]
    _distributed_c10d._set_thread_isolation_mode(True)  # type: ignore[attr-defined]  # not in torch's stubs

    plugins: dict[str, Any] = dist.Backend._plugins
    undo.callback(plugins.__setitem__, BACKEND.upper(), plugins[BACKEND.upper()])
    plugins[BACKEND.upper()] = dist.Backend._BackendPlugin(create_group, True)

    before = threading.Thread.start
    start = _inheriting(before)
    threading.Thread.start = start  # type: ignore[method-assign,assignment]

    def put_back() -> None:
        # Other code may have wrapped it since; then our wrapper stays inside, and does nothing for threads of no rank.
        if threading.Thread.start is start:
            threading.Thread.start = before  # type: ignore[method-assign]

    undo.callback(put_back)


def _keep_cuda_stand_in() -> None:
    """Make torch create its stand-in for CUDA's device guard on this thread if torch has CUDA but there is no GPU.

    Up to torch 2.11, the stand-in belongs to the thread that creates the first fake tensor, which every DTensor does.
    If that is a rank's thread, the stand-in ends with it, and the next backward pass of the process crashes.
    """
    if torch.__version__ < "2.12" and torch.version.cuda is not None and not torch.cuda.is_available():
        torch._C._ensureCUDADeviceGuardSet()


@contextlib.contextmanager
def rank_state(member: Member) -> Iterator[None]:
    """Give the calling thread, a rank's own, the rank's `torch.distributed` state; remove the state at the end."""
    # The backward pass has to run on the rank's own thread, which sees the rank's groups. Applies to this thread only.
    torch._C._set_multithreading_enabled(False)
    try:
        yield
    finally:
        # torch stores these by thread identifier, which a later thread may get.
        _distributed_c10d._unregister_all_process_groups()
        member.c10d.clear()


@functools.cache
def _routed(world_class: type[Any]) -> type[Any]:
    """Return a subclass of c10d's `_World` with properties per rank; threads of no rank see the process's values."""
    routed = {
        name: _routed_property(name, value)
        for name, value in vars(world_class).items()
        if isinstance(value, property) and name not in _DERIVED
    }
    return type(f"_Routed{world_class.__name__}", (world_class,), routed)


def _routed_property(name: str, of_process: property) -> property:
    def get(world: Any) -> Any:
        member = current_member()
        if member is None:
            return of_process.__get__(world)
        if name == _DEFAULT_GROUP and _is_for_all_ranks():
            return None
        if name not in member.c10d:
            # The empty value of the same type: a mapping, a list, a number, or None.
            kind = type(of_process.__get__(world))
            member.c10d[name] = kind() if kind in (dict, list, int) else None
        return member.c10d[name]

    def put(world: Any, value: Any) -> None:
        member = current_member()
        if member is None:
            of_process.__set__(world, value)
        else:
            member.c10d[name] = value

    return property(get, put)


def _is_for_all_ranks() -> bool:
    """Return whether code of a module or class, outside functions, asks for `dist.group.WORLD`.

    Such code runs once, on the rank that imports the module first, and its value is the default of a parameter for all
    ranks: `def all_reduce(tensor, group=dist.group.WORLD)`. There None has the same meaning, for each rank its own.
    """
    # This function, the property of `_World`, and that of `dist.group` are between.
    caller = sys._getframe(2)
    return caller.f_code.co_name == "WORLD" and not (
        caller.f_back is None
        or caller.f_back.f_code.co_flags & inspect.CO_OPTIMIZED
        # torch.compile reads the group of a call by `eval`, for the rank that compiles.
        or caller.f_back.f_code.co_filename == "<string>"
    )


def _without_turns(barrier: Callable[..., None]) -> Callable[..., None]:
    """Return torch's barrier of a new group, without effect for ranks that run one at a time.

    It waits in the store. A rank that does so keeps the turn, and no other rank could come. The ranks need no barrier:
    the first one that makes the group makes all that they share of it.
    """

    @functools.wraps(barrier)
    def wait_for_all(*arguments: Any) -> None:
        member = current_member()
        if member is None or not member.world.turns.are_on:
            barrier(*arguments)

    return wait_for_all


def _inheriting(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    @functools.wraps(start)
    def start_as_rank(thread: threading.Thread) -> None:
        member = current_member()
        if member is None or isinstance(thread, RankThread):
            start(thread)
            return
        run = thread.run
        leave = functools.partial(member.world.leave, member, is_rank_thread=False)

        def run_as_rank() -> None:
            with acting_as(member):
                try:
                    run()
                finally:
                    leave()

        thread.run = run_as_rank  # type: ignore[method-assign]
        member.world.add_thread(member)
        try:
            start(thread)
        except BaseException:
            # The thread was started before, or the limit on threads is reached. In that case, the test may try again.
            thread.run = run  # type: ignore[method-assign]
            leave()
            raise

    return start_as_rank
