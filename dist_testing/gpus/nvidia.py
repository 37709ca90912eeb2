"""Finds NVIDIA's GPUs without creating a CUDA context, because a process with a context cannot fork ranks.

The driver's files are enough to count, name and lease GPUs. Where these files are hidden, as in some containers, the
management library gives the names. Only the library knows the architecture, and whether a GPU is divided (MIG).
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from pathlib import Path

from dist_testing.core.ground.procfs import content_of
from dist_testing.gpus.gpu import (
    NODES_VARIABLE,
    NVML_VARIABLE,
    Found,
    Gpu,
    is_simulated,
    node_directory,
    node_names,
    why_closed,
)
from dist_testing.gpus.nvml import NvmlGpu, open_nvml

_NODE = re.compile(r"nvidia([0-9]{1,4})")
# The driver makes it for every process and every container that has a GPU.
_CONTROL_NODE = "nvidiactl"
_MINOR = re.compile(r"[0-9]{1,9}")
# One folder per GPU, named by its PCI address, with a file of "Name: value" lines.
_DRIVER_DIRECTORY = Path("/proc/driver/nvidia/gpus")


# Behind all addresses in the order of GPUs.
_NO_ADDRESS = "~"


def find_nvidia(env: Mapping[str, str] = os.environ) -> Found:
    """Return every GPU here whose device node this process may open."""
    folder = node_directory(env)
    simulated = is_simulated(env)
    names = node_names(folder, may_be_missing=not simulated)
    minors = sorted(int(match[1]) for name in names if (match := _NODE.fullmatch(name)))
    if not minors:
        return Found(())
    nodes = {minor: folder / f"nvidia{minor}" for minor in minors}
    library, has_lost = _gpus_of_library(env.get(NODES_VARIABLE, ""), env.get(NVML_VARIABLE, ""))
    if simulated:
        facts = {minor: NvmlGpu(minor, "", f"GPU-simulated-{minor}", "simulated GPU") for minor in minors}
    else:
        facts = _facts_of_driver()
        if any(minor not in facts or not facts[minor].uuid for minor in minors):
            facts |= library
    # Nodes stay when GPUs are taken out. With a lost GPU all nodes stay listed: which one is its shows only the lease.
    listed = nodes if not facts or has_lost else facts
    lacks = {
        minor: why_closed(node) if minor in listed else f"{node}: the driver has no such GPU"
        for minor, node in nodes.items()
    }
    usable = [facts.get(minor, NvmlGpu(minor, _NO_ADDRESS, "", "")) for minor in minors if not lacks[minor]]
    gpus = tuple(
        Gpu(
            index,
            nodes[its.minor],
            uuid=its.uuid,
            model=its.model,
            # The driver's files do not tell the last two.
            arch=library.get(its.minor, its).arch,
            control=folder / _CONTROL_NODE,
            is_mig=library.get(its.minor, its).is_mig,
        )
        for index, its in enumerate(sorted(usable, key=lambda its: (its.address, its.minor)))
    )
    return Found(gpus, tuple(lack for lack in lacks.values() if lack))


def _facts_of_driver() -> dict[int, NvmlGpu]:
    """The facts in the driver's files by device minor. Empty where they are hidden, as in some containers."""
    facts: dict[int, NvmlGpu] = {}
    for file in _DRIVER_DIRECTORY.glob("*/information"):
        # Nothing, if the GPU fell off the bus.
        lines = content_of(str(file)).decode(errors="replace").splitlines()
        values = {
            name.strip(): value.strip() for name, found, value in (line.partition(":") for line in lines) if found
        }
        minor = values.get("Device Minor", "")
        if _MINOR.fullmatch(minor):
            uuid = values.get("GPU UUID", "")
            # Until something has opened the GPU, the driver writes question marks.
            facts[int(minor)] = NvmlGpu(
                int(minor), file.parent.name, "" if "?" in uuid else uuid, values.get("Model", "")
            )
    return facts


# Cached: the library takes up to a second for each GPU, and these facts do not change while a process runs.
@functools.cache
def _gpus_of_library(nodes_variable: str, nvml_variable: str) -> tuple[Mapping[int, NvmlGpu], bool]:
    """What the library knows, by device minor, and whether a GPU is lost."""
    with open_nvml({NODES_VARIABLE: nodes_variable, NVML_VARIABLE: nvml_variable}) as library:
        gpus = library.gpus() if library is not None else ()
        return {gpu.minor: gpu for gpu in gpus}, library is not None and library.lost_count > 0
