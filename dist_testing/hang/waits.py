"""Recognises from the Python frames of a blocked thread what it waits for.

Torch's flight recorder knows the collectives of a rank, not which of them its main thread waits for, and neither
point-to-point operations nor stores. The frames know: the innermost one names the call that has not returned, and its
variables hold the arguments. No code of the test runs for this: variables are read, properties and methods of the
test's own classes are not called. A call that is not understood is no wait for another rank.
"""

from __future__ import annotations

import ast
import inspect
import operator
import os
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from types import FrameType, MethodType, ModuleType
from typing import Any

import dist_testing.core.ground.world
from dist_testing.core.ground.layout import LOOPBACK, node_address
from dist_testing.hang.call_sites import call_in
from dist_testing.hang.ledger import Wait, WaitKind
from dist_testing.hang.native_waits import native_wait

# torch's module of collectives.
C10D = "torch.distributed.distributed_c10d"
_LOGGER = "torch.distributed.c10d_logger"
_FUNCTIONAL = "torch.distributed._functional_collectives"
# Where torch calls an operator, and calls it again for autograd.
_OPERATORS_OF_TORCH = ("torch._ops", "torch._library.")
# c10d::OpType, the part that concerns one peer: SEND, RECV, RECVANYSOURCE.
_POINT_TO_POINT = frozenset({12, 13, 14})
_STORE_WAITS = frozenset({"wait", "get", "multi_get"})
_MAX_KEYS_CHARS = 200
_WORLD_FILE = dist_testing.core.ground.world.__file__
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mod: operator.mod,
    ast.BitXor: operator.xor,
}


class _UnknownError(Exception):
    """The value of an expression cannot be told without running code."""


def wait_of(frame: FrameType) -> Wait | None:
    """Return what a thread waits for.

    Args:
        frame: The innermost frame of the thread, which is inside a call of native code.

    Returns:
        None if that is not another rank, or if it cannot be told.
    """
    c10d = sys.modules.get(C10D)
    if c10d is None:
        return None
    if wait := _functional_wait(frame):
        return wait
    call = call_in(frame)
    if call is None:
        return None
    try:
        if isinstance(call.func, ast.Attribute):
            return _wait_of_method(frame, call, call.func, c10d)
        if isinstance(call.func, ast.Name) and call.func.id == "ProcessGroupGloo" and _module_of(frame) == C10D:
            return _new_group(frame)
        if isinstance(call.func, ast.Name):
            method = _value(call.func, frame)
            if type(method) is MethodType and type(method.__self__) is c10d.Work:
                return _wait_of_work(frame, call, method.__name__, method.__self__, c10d)
    except (_UnknownError, RuntimeError):
        # RuntimeError: torch does not tell it of this object.
        pass
    return None


def group_name(group: object, c10d: ModuleType) -> str:
    """Return torch's name of a process group; of the default group for None.

    Raises:
        _UnknownError: If it is none that torch knows.
    """
    names: dict[object, str] = c10d._world.pg_names
    try:
        return names[c10d.GroupMember.WORLD if group is None else group]
    except (KeyError, TypeError) as error:
        raise _UnknownError from error


def _functional_wait(frame: FrameType) -> Wait | None:
    """Functional collectives wait in an operator of torch."""
    inner: FrameType | None = frame
    while inner is not None and _module_of(inner).startswith(_OPERATORS_OF_TORCH):
        inner = inner.f_back
    if inner is not None and _module_of(inner) == _FUNCTIONAL and inner.f_code.co_name == "wait_tensor":
        return Wait(WaitKind.SOME_COLLECTIVE, "wait_tensor")
    return None


def _wait_of_method(frame: FrameType, call: ast.Call, method: ast.Attribute, c10d: ModuleType) -> Wait | None:
    in_c10d = _module_of(frame) == C10D
    if wait := native_wait(frame, method.attr):
        return wait
    if in_c10d and method.attr == "monitored_barrier":
        timeout = frame.f_locals.get("timeout")
        group = group_name(frame.f_locals.get("group"), c10d)
        return Wait(WaitKind.MONITORED, "monitored_barrier", group, limit_ms=_milliseconds(timeout))
    if isinstance(method.value, ast.Call):
        return _wait_of_new_work(frame, call, method, c10d)
    receiver = _value(method.value, frame)
    if isinstance(receiver, c10d.Store):
        return _store_wait(frame, call, method.attr, receiver)
    return _wait_of_work(frame, call, method.attr, receiver, c10d) if type(receiver) is c10d.Work else None


def _wait_of_work(frame: FrameType, call: ast.Call, method: str, work: Any, c10d: ModuleType) -> Wait | None:
    if method != "wait" or call.args or call.keywords or work.is_completed():
        return None
    is_collective = work._get_op_type() not in _POINT_TO_POINT
    if _module_of(frame) != C10D:
        if is_collective:
            return Wait(WaitKind.SOME_COLLECTIVE, "wait")
        return Wait(WaitKind.HANDLE, "wait of a send or a receive", limit_ms=_common_limit(c10d))
    operation = frame.f_code.co_name
    variables = frame.f_locals
    if operation in ("send", "recv"):
        peer, group_peer = ("dst", "group_dst") if operation == "send" else ("src", "group_src")
        return _point_to_point(operation, variables.get(peer), variables.get(group_peer), variables, c10d)
    if not is_collective or "group" not in variables:
        return None
    return Wait(WaitKind.COLLECTIVE, _public_operation(frame), group_name(variables["group"], c10d))


def _public_operation(frame: FrameType) -> str:
    """The function of torch that the test has called, such as one for objects that consists of several collectives."""
    name = frame.f_code.co_name
    outer: FrameType | None = frame
    while outer is not None and _module_of(outer) in (C10D, _LOGGER):
        if _module_of(outer) == C10D and not outer.f_code.co_name.startswith("_"):
            name = outer.f_code.co_name
        outer = outer.f_back
    return name


def _wait_of_new_work(frame: FrameType, call: ast.Call, method: ast.Attribute, c10d: ModuleType) -> Wait | None:
    """Such as `dist.irecv(tensor, 0).wait()`: the work is in no variable."""
    began = method.value
    assert isinstance(began, ast.Call)
    if method.attr != "wait" or call.args or call.keywords:
        return None
    function = _value(began.func, frame)
    if getattr(function, "__module__", None) != C10D or not inspect.isfunction(function):
        return None
    name = function.__name__
    if getattr(c10d, name, None) is not function:
        return None
    if name not in ("isend", "irecv"):
        return Wait(WaitKind.SOME_COLLECTIVE, name)
    if any(isinstance(argument, ast.Starred) for argument in began.args) or len(began.args) > 5:
        raise _UnknownError
    peer, group_peer = ("dst", "group_dst") if name == "isend" else ("src", "group_src")
    names = ("tensor", peer, "group", "tag", group_peer)
    nodes = dict(zip(names, began.args, strict=False)) | {word.arg or "": word.value for word in began.keywords}
    given = {argument: _value(node, frame) for argument, node in nodes.items() if argument != "tensor"}
    if not given.keys() <= set(names):
        raise _UnknownError
    return _point_to_point(name, given.get(peer), given.get(group_peer), given, c10d)


def _point_to_point(
    operation: str, peer: object, group_peer: object, arguments: Mapping[str, object], c10d: ModuleType
) -> Wait:
    group: Any = arguments.get("group")
    name = group_name(group, c10d)
    group = c10d.GroupMember.WORLD if group is None else group
    if peer is None and group_peer is not None:
        ranks: dict[int, int] = c10d._world.pg_group_ranks[group]
        peer = next((world for world, local in ranks.items() if local == group_peer), None)
        if peer is None:
            raise _UnknownError
    tag = arguments.get("tag", 0)
    if not isinstance(tag, int) or not (peer is None or isinstance(peer, int)):
        raise _UnknownError
    is_send = operation in ("send", "isend")
    if is_send and peer is None:
        raise _UnknownError
    kind = WaitKind.SEND if is_send else WaitKind.RECEIVE
    return Wait(kind, operation, name, -1 if peer is None else peer, tag, limit_ms=_limit(group))


def _limit(group: Any) -> int:
    """The limit of a group's operations on the CPU, in milliseconds; 0 if that is not known."""
    try:
        return _milliseconds(group._get_backend(sys.modules["torch"].device("cpu")).options._timeout)
    except (AttributeError, RuntimeError):
        return 0


def _common_limit(c10d: ModuleType) -> int:
    """The limit of the default group; 0 if the limit of another group is neither that nor torch's own."""
    own = {_limit(group) for group in list(c10d._world.pg_map)}
    default = _limit(c10d.GroupMember.WORLD)
    return default if own <= {default, _milliseconds(c10d.default_pg_timeout)} else 0


def _store_wait(frame: FrameType, call: ast.Call, method: str, store: Any) -> Wait | None:
    if method not in _STORE_WAITS or not _is_of_world(store):
        return None
    if frame.f_code.co_filename == _WORLD_FILE and frame.f_code.co_name == "barrier":
        world = frame.f_locals["self"]
        return Wait(
            WaitKind.MEETING,
            "world.barrier",
            f"world.barrier {world._barriers}",
            limit_ms=_milliseconds(world._timeout),
            ranks=tuple(range(world.size)),
        )
    values = [*call.args, *(word.value for word in call.keywords)]
    limits = [_milliseconds(store.timeout if len(values) < 2 else _value_or_none(values[1], frame))]
    keys = _value_or_none(values[0], frame) if values else None
    return Wait(WaitKind.STORE, method, keys=_shown(keys), limit_ms=min(limits))


def _is_of_world(store: Any) -> bool:
    """Whether only ranks of this world can set keys of a store: it is the world's own, or one in this process."""
    dist: Any = sys.modules["torch.distributed"]
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if isinstance(store, dist.TCPStore):
        return str(store.port) == os.environ.get("MASTER_PORT") and store.host in (
            LOOPBACK,
            "localhost",
            node_address(0),
        )
    return isinstance(store, dist.HashStore)


def _new_group(frame: FrameType) -> Wait:
    # torch 2.15 makes the backend's object in a function of its own; the group's values are in the caller of that.
    helper: FrameType | None = frame
    while helper is not None and helper.f_code.co_name != "_new_process_group_helper":
        helper = helper.f_back if _module_of(helper) == C10D else None
    if helper is None:
        raise _UnknownError
    variables = helper.f_locals
    ranks = variables["global_ranks_in_group"] or range(variables["group_size"])
    limits = [_milliseconds(variables["timeout"]), _milliseconds(getattr(variables["store"], "timeout", None))]
    return Wait(
        WaitKind.MEETING,
        "new_group" if variables["global_ranks_in_group"] else "init_process_group",
        str(variables["group_name"]),
        limit_ms=min(limits),
        ranks=tuple(ranks),
    )


def _shown(keys: object) -> str:
    texts = keys if isinstance(keys, list | tuple) else [keys]
    return ", ".join(repr(text) for text in texts if isinstance(text, str))[:_MAX_KEYS_CHARS]


def _milliseconds(limit: object) -> int:
    return round(limit.total_seconds() * 1000) if type(limit) is timedelta else 0


def _value_or_none(node: ast.expr, frame: FrameType) -> object:
    try:
        return _value(node, frame)
    except _UnknownError:
        return None


def _value(node: ast.expr, frame: FrameType) -> Any:
    """The value of a simple expression, found without running the test's code.

    Raises:
        _UnknownError: If the expression is of another kind.
    """
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            for variables in (frame.f_locals, frame.f_globals, frame.f_builtins):
                if node.id in variables:
                    return variables[node.id]
        case ast.List() | ast.Tuple():
            return [_value(element, frame) for element in node.elts]
        case ast.BinOp() if type(node.op) in _OPERATORS:
            left, right = _value(node.left, frame), _value(node.right, frame)
            if type(left) is int and type(right) is int and not (isinstance(node.op, ast.Mod) and right == 0):
                return _OPERATORS[type(node.op)](left, right)
        case ast.Attribute():
            return _attribute(_value(node.value, frame), node.attr)
        case ast.Subscript():
            container, index = _value(node.value, frame), _value(node.slice, frame)
            if type(container) in (list, tuple, dict) and type(index) in (int, str):
                try:
                    return container[index]
                except (IndexError, KeyError) as error:
                    raise _UnknownError from error
    raise _UnknownError


def _attribute(owner: Any, name: str) -> Any:
    # A module's `__getattr__` is code, and so is a property.
    try:
        value = inspect.getattr_static(owner, name)
    except AttributeError as error:
        raise _UnknownError from error
    if hasattr(type(value), "__get__") and not isinstance(owner, ModuleType):
        cached = vars(owner).get(name) if hasattr(owner, "__dict__") else None
        if cached is None:
            raise _UnknownError
        return cached
    return value


def _module_of(frame: FrameType) -> str:
    name: object = frame.f_globals.get("__name__")
    return name if isinstance(name, str) else ""
