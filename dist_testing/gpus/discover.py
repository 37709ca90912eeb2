"""Counts GPUs without creating a CUDA context: a process that has one cannot be forked from."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

__all__ = ["gpu_count"]

_DEVICE_NODE = re.compile(r"nvidia[0-9]+")


def gpu_count(env: Mapping[str, str] = os.environ, node_directory: str = "/dev") -> int:
    """GPUs that this process may use: device nodes, of which `CUDA_VISIBLE_DEVICES` may allow fewer.

    Args:
        env: Where the variable is looked up. As in CUDA, the list ends at the first entry that is not a device.
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
        known = int(entry) < present if entry.isdecimal() else entry.startswith(("GPU-", "MIG-"))
        if not known or entry in allowed:
            break
        allowed.add(entry)
    return min(present, len(allowed))
