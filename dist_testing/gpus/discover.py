"""Counts GPUs without creating a CUDA context: a process that has one cannot be forked from."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

__all__ = ["gpu_count"]

_SMALL_NUMBER = re.compile(r"[0-9]{1,9}")
_DEVICE_NODE = re.compile(r"nvidia[0-9]+")


def gpu_count(env: Mapping[str, str] = os.environ, node_directory: str = "/dev") -> int:
    """GPUs that this process may use: device nodes, of which `CUDA_VISIBLE_DEVICES` may allow fewer.

    Args:
        env: Where the variable is looked up. As in torch, the list ends at the first entry that is not a device, and
            one that names a device twice gives none.
        node_directory: Where the device nodes are.
    """
    try:
        present = sum(1 for name in os.listdir(node_directory) if _DEVICE_NODE.fullmatch(name))
    except FileNotFoundError:
        present = 0
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    allowed: set[str] = set()
    for entry in (part.strip() for part in visible.split(",")):
        is_number = _SMALL_NUMBER.fullmatch(entry) is not None
        if not (int(entry) < present if is_number else entry.startswith(("GPU-", "MIG-"))):
            break
        if entry in allowed:
            return 0
        allowed.add(entry)
    return min(present, len(allowed))
