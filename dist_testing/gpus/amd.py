"""Finds AMD's GPUs, through the same interface as NVIDIA's. Tested with simulated nodes, not yet on hardware.

Each GPU has a render node. No file holds its UUID, so GPUs are named by number, in the order of their PCI addresses.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from dist_testing.core.ground.procfs import content_of
from dist_testing.gpus.gpu import Found, Gpu, is_simulated, node_directory, node_names, why_closed

_NUMBER = re.compile(r"[0-9]{1,9}")
_NODE = re.compile(r"renderD([0-9]{1,4})")
_PCI_VENDOR = "0x1002"
# Every process and every container that computes on AMD's GPUs has it.
_CONTROL_NODE = "kfd"
# Holds a folder for each node, with a link to its PCI device. A folder of simulated nodes has the same path below it.
_SYSTEM_DIRECTORY = "sys/class/drm"
# Holds a folder with the properties of each processor and GPU.
_TOPOLOGY = "sys/class/kfd/kfd/topology/nodes"


def find_amd(env: Mapping[str, str] = os.environ) -> Found:
    """Return every GPU here whose render node this process may open."""
    folder = node_directory(env)
    simulated = is_simulated(env)
    if simulated:
        node_names(folder, may_be_missing=False)
    system = (folder if simulated else Path("/")) / _SYSTEM_DIRECTORY
    names = node_names(folder / "dri", may_be_missing=True)
    minors = sorted(int(match[1]) for name in names if (match := _NODE.fullmatch(name)))
    nodes = [folder / "dri" / f"renderD{minor}" for minor in minors if _vendor(system, minor) == _PCI_VENDOR]
    lacks = {node: why_closed(node) for node in nodes}
    usable = sorted(
        (node for node in nodes if not lacks[node]), key=lambda node: os.path.realpath(system / node.name / "device")
    )
    archs = _archs((folder if simulated else Path("/")) / _TOPOLOGY)
    gpus = tuple(
        Gpu(index, node, arch=archs.get(node.name, ""), control=folder / _CONTROL_NODE)
        for index, node in enumerate(usable)
    )
    return Found(gpus, tuple(lack for lack in lacks.values() if lack))


def _vendor(system: Path, minor: int) -> str:
    # Nothing, if the node belongs to no PCI device.
    return content_of(f"{system}/renderD{minor}/device/vendor").decode("ascii", errors="replace").strip()


def _archs(topology: Path) -> dict[str, str]:
    """Return the architectures of GPUs by the names of their nodes. Empty where the kernel's files are hidden."""
    archs = {}
    for file in topology.glob("*/properties"):
        # The kernel shows the GPUs of other containers, without their content.
        lines = content_of(str(file)).decode("ascii", errors="replace").splitlines()
        values = {name: value for name, _, value in (line.strip().partition(" ") for line in lines)}
        version = values.get("gfx_target_version", "")
        if _NUMBER.fullmatch(version) and int(version):
            number = int(version)
            arch = f"gfx{number // 10000}{number // 100 % 100}{number % 100:x}"
            archs[f"renderD{values.get('drm_render_minor', '')}"] = arch
    return archs
