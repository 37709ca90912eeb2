"""NVIDIA's GPUs, found without creating a CUDA context: a process that has one cannot be forked from.

What the driver says in files is enough to count, to name and to lease. Where those are hidden, as in some containers,
its management library is asked for the names. Only the library knows whether a GPU is divided (MIG).
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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
from dist_testing.gpus.nvml import open_nvml

__all__ = ["find_nvidia"]

_NODE = re.compile(r"nvidia([0-9]{1,4})")
# The driver makes it for every process and every container that has a GPU.
_CONTROL_NODE = "nvidiactl"
_MINOR = re.compile(r"[0-9]{1,9}")
# One folder per GPU, named by its PCI address, with a file of "Name: value" lines.
_DRIVER_DIRECTORY = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, slots=True)
class _Told:
    address: str
    uuid: str
    model: str


@dataclass(frozen=True, slots=True)
class _Library:
    told: Mapping[int, _Told]
    mig_minors: frozenset[int]
    has_lost: bool


def find_nvidia(env: Mapping[str, str] = os.environ) -> Found:
    """Every GPU that has a device node here which this process may open.

    Raises:
        GpuError: If the folder of the nodes cannot be read, or a simulated one does not exist.
    """
    folder = node_directory(env)
    simulated = is_simulated(env)
    names = node_names(folder, may_be_missing=not simulated)
    minors = sorted(int(match[1]) for name in names if (match := _NODE.fullmatch(name)))
    if not minors:
        return Found(())
    nodes = {minor: folder / f"nvidia{minor}" for minor in minors}
    library = _told_by_library(env.get(NODES_VARIABLE, ""), env.get(NVML_VARIABLE, ""))
    if simulated:
        told = {minor: _Told("", f"GPU-simulated-{minor}", "simulated GPU") for minor in minors}
    else:
        told = _told_by_driver()
        if any(minor not in told or not told[minor].uuid for minor in minors):
            told |= library.told
    # Nodes outlive GPUs that were taken out. If one has been lost, nobody knows which node is its: its lease tells.
    listed = nodes if not told or library.has_lost else told
    lacks = {
        minor: why_closed(node) if minor in listed else f"{node}: the driver has no such GPU"
        for minor, node in nodes.items()
    }
    usable = [minor for minor in minors if not lacks[minor]]
    gpus = tuple(
        Gpu(
            index,
            nodes[minor],
            uuid=told[minor].uuid if minor in told else "",
            model=told[minor].model if minor in told else "",
            is_simulated=simulated,
            control=folder / _CONTROL_NODE,
            is_mig=minor in library.mig_minors,
        )
        for index, minor in enumerate(
            sorted(usable, key=lambda minor: (told[minor].address if minor in told else "~", minor))
        )
    )
    return Found(gpus, tuple(lack for lack in lacks.values() if lack))


def _told_by_driver() -> dict[int, _Told]:
    """By device minor, what the driver's files say. Empty where they are hidden, as in some containers."""
    told: dict[int, _Told] = {}
    try:
        addresses = sorted(os.listdir(_DRIVER_DIRECTORY))
    except OSError:
        return told
    for address in addresses:
        try:
            lines = (_DRIVER_DIRECTORY / address / "information").read_text("utf-8", errors="replace").splitlines()
        except OSError:
            # Of a GPU that fell off the bus.
            continue
        facts = {name.strip(): value.strip() for name, found, value in (line.partition(":") for line in lines) if found}
        minor = facts.get("Device Minor", "")
        if _MINOR.fullmatch(minor):
            uuid = facts.get("GPU UUID", "")
            # Until something has opened the GPU, the driver writes question marks.
            told[int(minor)] = _Told(address, "" if "?" in uuid else uuid, facts.get("Model", ""))
    return told


# The library takes up to a second for each GPU, and nothing of this changes while a process runs.
@functools.cache
def _told_by_library(nodes_variable: str, nvml_variable: str) -> _Library:
    with open_nvml({NODES_VARIABLE: nodes_variable, NVML_VARIABLE: nvml_variable}) as library:
        if library is None:
            return _Library({}, frozenset(), has_lost=False)
        gpus = library.gpus()
        return _Library(
            {gpu.minor: _Told(gpu.address, gpu.uuid, gpu.model) for gpu in gpus},
            frozenset(gpu.minor for gpu in gpus if library.is_mig(gpu)),
            has_lost=library.lost_count > 0,
        )
