"""Recognises native code of torch that waits for collectives: the backward pass, and what DistributedDataParallel does.

Such code begins collectives itself and waits until they have ended. The recorder knows which; here it is only found
that the main thread waits for nothing else.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Iterable
from types import FrameType
from typing import Any

from dist_testing.hang.ledger import Wait, WaitKind

_AUTOGRAD = "torch.autograd.graph"
_DDP = "torch.nn.parallel.distributed"
# Functions of torch._C._distributed_c10d that make collectives and wait for them.
_FUNCTIONS = frozenset({"_broadcast_coalesced", "_verify_params_across_processes"})
# The nodes of torch's own operators. A function of an extension is a `CppFunction`, whatever it does; one in Python has
# a frame of its own while it runs.
_BUILTIN_NODE = re.compile(r"AccumulateGrad|CopyBackwards|CopySlices|GraphRoot|\w+Backward\d*")
# A graph that is larger is not looked at: the thread that would do so holds the GIL. Nodes.
_MAX_NODES = 20_000


def native_wait(frame: FrameType, method: str) -> Wait | None:
    """Return what native code waits for that torch's Python code has called.

    Args:
        frame: The innermost frame, which is of torch.
        method: Name of the function that it has called.
    """
    module = frame.f_globals.get("__name__")
    if method in _FUNCTIONS and isinstance(module, str) and module.startswith("torch."):
        return Wait(WaitKind.SOME_COLLECTIVE, "DistributedDataParallel" if _is_of_ddp(frame) else method.lstrip("_"))
    if method == "run_backward" and module == _AUTOGRAD and _is_builtin_graph(frame.f_locals.get("t_outputs")):
        return Wait(WaitKind.SOME_COLLECTIVE, "backward")
    return None


def _is_of_ddp(frame: FrameType) -> bool:
    outer: FrameType | None = frame
    while outer is not None:
        if outer.f_globals.get("__name__") == _DDP:
            return True
        outer = outer.f_back
    return False


def _roots(outputs: Iterable[Any]) -> list[Any]:
    return [output.grad_fn for output in outputs]


def _is_builtin_graph(outputs: object) -> bool:
    """Whether a backward pass runs torch's own operators only, on the CPU, so that it waits for nothing of its own."""
    torch: Any = sys.modules["torch"]
    if not isinstance(outputs, list | tuple) or torch.cuda.is_initialized():
        return False
    if not all(type(output) is torch.Tensor and output.device.type == "cpu" for output in outputs):
        return False
    nodes = deque(_roots(outputs))
    seen = set(nodes)
    while nodes:
        node = nodes.popleft()
        if node is None:
            continue
        cls = type(node)
        in_python = issubclass(cls, torch._C._FunctionBase)
        if len(seen) > _MAX_NODES or not (in_python or _BUILTIN_NODE.fullmatch(cls.__name__)):
            return False
        for following, _ in node.next_functions:
            if following not in seen:
                seen.add(following)
                nodes.append(following)
    return True
