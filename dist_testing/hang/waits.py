"""Recognises from the Python frames of a blocked thread what it waits for, where these frames are torch's own.

Torch's flight recorder knows the collectives of a rank, not which of them its main thread waits for, and no
point-to-point operations. A function of torch that waits has the group and the peer in its variables. A wait that the
test's own line begins leaves no frame of torch. That of an asynchronous call gets one from `call_details`. That of a
store is not recognised, and the deadline decides.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from datetime import timedelta
from types import FrameType, ModuleType
from typing import Any

import dist_testing.core.ground.world
from dist_testing.hang.ledger import Wait, WaitKind

# torch's module of collectives.
C10D = "torch.distributed.distributed_c10d"
_LOGGER = "torch.distributed.c10d_logger"
# It stands between torch's logger and the collective, and in front of a handle's wait.
_DETAILS = "dist_testing.hang.call_details"
# Where torch calls an operator, and calls it again for autograd.
_OPERATORS_OF_TORCH = ("torch._ops", "torch._library.")
# Functions of torch, by module and name, that wait in native code for collectives that this code has begun, to what a
# report calls them.
_NATIVE = {
    ("torch.distributed._functional_collectives", "wait_tensor"): "wait_tensor",
    ("torch.distributed._state_dict_utils", "_broadcast_tensors"): "broadcast_tensors",
    ("torch.distributed.utils", "_sync_params_and_buffers"): "sync_params_and_buffers",
    ("torch.distributed.utils", "_verify_param_shape_across_processes"): "DistributedDataParallel",
    ("torch.nn.parallel.distributed", "_distributed_broadcast_coalesced"): "DistributedDataParallel",
    ("torch.autograd.graph", "_engine_run_backward"): "backward",
}
# c10d::OpType, the part that concerns one peer: SEND, RECV, RECVANYSOURCE.
_POINT_TO_POINT = frozenset({12, 13, 14})
_WORLD_FILE = dist_testing.core.ground.world.__file__


def wait_of(frame: FrameType) -> Wait | None:
    """Return what a thread waits for, by its innermost frame, which is inside a call of native code.

    None if that is not another rank, or if it cannot be told.
    """
    c10d = sys.modules.get(C10D)
    if c10d is None:
        return None
    if frame.f_code.co_filename == _WORLD_FILE and frame.f_code.co_name == "barrier":
        return _of_barrier(frame.f_locals["self"])
    handle: Mapping[str, Any] | None = None
    if _module_of(frame) == _DETAILS and frame.f_code.co_name == "wait" and frame.f_back is not None:
        handle, frame = frame.f_locals, frame.f_back
    if _module_of(frame) == C10D and (found := _in_torch(frame, c10d)) is not None:
        return found
    return _in_native_code(frame) if handle is None else _of_handle(handle, c10d)


def _of_handle(variables: Mapping[str, Any], c10d: ModuleType) -> Wait | None:
    """One of the collectives that the rank has begun: a handle does not tell which."""
    work = variables["work"]
    if type(work) is not c10d.Work or work.is_completed() or work._get_op_type() in _POINT_TO_POINT:
        return None
    if variables["limits"] or variables["named"] or sys.modules["torch"].cuda.is_initialized():
        # The wait ends by itself, or is one for a GPU.
        return None
    return Wait(WaitKind.SOME_COLLECTIVE, "wait")


def _in_torch(frame: FrameType, c10d: ModuleType) -> Wait | None:
    """What a function of torch's module of collectives waits for."""
    if frame.f_code.co_name == "monitored_barrier":
        group = _group_name(frame.f_locals.get("group"), c10d)
        limit_ms = _milliseconds(frame.f_locals.get("timeout"))
        return None if group is None else Wait(WaitKind.MONITORED, "monitored_barrier", group, limit_ms=limit_ms)
    for caller in _within(frame, C10D):
        if caller.f_code.co_name == "_new_process_group_helper":
            return _new_group(caller.f_locals)
    work: Any = frame.f_locals.get("work")
    if type(work) is not c10d.Work or work.is_completed() or "group" not in frame.f_locals:
        return None
    if work._get_op_type() in _POINT_TO_POINT:
        return _point_to_point(frame.f_code.co_name, frame.f_locals, c10d)
    group = _group_name(frame.f_locals["group"], c10d)
    return None if group is None else Wait(WaitKind.COLLECTIVE, _public_operation(frame), group)


def _in_native_code(frame: FrameType) -> Wait | None:
    """What native code waits for that has begun collectives itself. The recorder knows which."""
    inner: FrameType | None = frame
    while inner is not None and _module_of(inner).startswith(_OPERATORS_OF_TORCH):
        inner = inner.f_back
    name = _NATIVE.get((_module_of(inner), inner.f_code.co_name)) if inner is not None else None
    is_backward = name == "backward"
    if name is None or (is_backward and sys.modules["torch"].cuda.is_initialized()):
        # A backward pass that uses a GPU waits for the GPU, too.
        return None
    return Wait(WaitKind.SOME_COLLECTIVE, name, is_presumed=is_backward)


def _of_barrier(world: Any) -> Wait:
    limit_ms = _milliseconds(world._timeout)
    name = f"world.barrier {world._barriers}"
    return Wait(WaitKind.MEETING, "world.barrier", name, limit_ms=limit_ms, ranks=tuple(range(world.size)))


def _new_group(variables: Mapping[str, Any]) -> Wait:
    """A group that is made, from the variables of torch's function that makes it."""
    ranks = variables["global_ranks_in_group"] or range(variables["group_size"])
    limits = [_milliseconds(variables["timeout"]), _milliseconds(getattr(variables["store"], "timeout", None))]
    return Wait(
        WaitKind.MEETING,
        "new_group" if variables["global_ranks_in_group"] else "init_process_group",
        str(variables["group_name"]),
        limit_ms=min(limits),
        ranks=tuple(ranks),
    )


def _point_to_point(operation: str, variables: Mapping[str, Any], c10d: ModuleType) -> Wait | None:
    if operation not in ("send", "recv"):
        return None
    peer_name = "dst" if operation == "send" else "src"
    peer, group_peer = variables.get(peer_name), variables.get(f"group_{peer_name}")
    name = _group_name(variables["group"], c10d)
    if name is None:
        return None
    group = c10d.GroupMember.WORLD if variables["group"] is None else variables["group"]
    if peer is None and group_peer is not None:
        ranks: dict[int, int] = c10d._world.pg_group_ranks[group]
        peer = next(world for world, local in ranks.items() if local == group_peer)
    kind = WaitKind.SEND if operation == "send" else WaitKind.RECEIVE
    return Wait(kind, operation, name, -1 if peer is None else peer, variables["tag"], limit_ms=_limit(group))


def _public_operation(frame: FrameType) -> str:
    """The function of torch that the test has called, such as one for objects that consists of several collectives."""
    names = [inner.f_code.co_name for inner in _within(frame, C10D, _LOGGER, _DETAILS) if _module_of(inner) == C10D]
    return next((name for name in reversed(names) if not name.startswith("_")), names[0])


def _within(frame: FrameType, *modules: str) -> Iterator[FrameType]:
    """The frame and its callers, innermost first, as long as they are of these modules."""
    inner: FrameType | None = frame
    while inner is not None and _module_of(inner) in modules:
        yield inner
        inner = inner.f_back


def _group_name(group: object, c10d: ModuleType) -> str | None:
    """torch's name of a process group; of the default group for None. None if torch does not know the group."""
    names: dict[object, str] = c10d._world.pg_names
    return names.get(c10d.GroupMember.WORLD if group is None else group)


def _limit(group: Any) -> int:
    """The limit of a group's operations on the CPU, in milliseconds; 0 if that is not known."""
    try:
        return _milliseconds(group._get_backend(sys.modules["torch"].device("cpu")).options._timeout)
    except (AttributeError, RuntimeError):
        return 0


def _milliseconds(limit: object) -> int:
    return round(limit.total_seconds() * 1000) if type(limit) is timedelta else 0


def _module_of(frame: FrameType) -> str:
    name: object = frame.f_globals.get("__name__")
    return name if isinstance(name, str) else ""
