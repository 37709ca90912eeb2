"""GPUs by vendor, and the ones that this process may use.

device nodes -> the GPUs that are here        CUDA_VISIBLE_DEVICES -> the ones of them that this process may use

No CUDA context is made, because a process with a context cannot fork ranks. The files of NVIDIA's driver are enough to
count, name and lease its GPUs. Where these files are hidden, as in some containers, the management library gives the
names. Only the library knows the architecture, and whether a GPU is divided (MIG).

Each of AMD's GPUs has a render node. No file holds its UUID, so these GPUs are named by number, in the order of their
PCI addresses. AMD's part is tested with simulated nodes, not yet on hardware.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
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
from dist_testing.gpus.nvml import Nvml, NvmlGpu, open_nvml

_NUMBER = re.compile(r"[0-9]{1,9}")
_NVIDIA_NODE = re.compile(r"nvidia([0-9]{1,4})")
# The driver makes it for every process and every container that has a GPU.
_NVIDIA_CONTROL_NODE = "nvidiactl"
# One folder per GPU, named by its PCI address, with a file of "Name: value" lines.
_DRIVER_DIRECTORY = Path("/proc/driver/nvidia/gpus")
# Behind all addresses in the order of GPUs.
_NO_ADDRESS = "~"
_AMD_NODE = re.compile(r"renderD([0-9]{1,4})")
_AMD_PCI_VENDOR = "0x1002"
# Every process and every container that computes on AMD's GPUs has it.
_AMD_CONTROL_NODE = "kfd"
# Holds a folder for each node, with a link to its PCI device. A folder of simulated nodes has the same path below it.
_AMD_SYSTEM_DIRECTORY = "sys/class/drm"
# Holds a folder with the properties of each processor and GPU.
_AMD_TOPOLOGY = "sys/class/kfd/kfd/topology/nodes"


def find_nvidia(env: Mapping[str, str] = os.environ) -> Found:
    """Return every GPU of NVIDIA whose device node this process may open."""
    folder = node_directory(env)
    simulated = is_simulated(env)
    minors = _minors(folder, _NVIDIA_NODE, may_be_missing=not simulated)
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
            control=folder / _NVIDIA_CONTROL_NODE,
            is_mig=library.get(its.minor, its).is_mig,
        )
        for index, its in enumerate(sorted(usable, key=lambda its: (its.address, its.minor)))
    )
    return Found(gpus, tuple(filter(None, lacks.values())))


def _minors(folder: Path, node: re.Pattern[str], *, may_be_missing: bool) -> list[int]:
    """The numbers of the device nodes in a folder."""
    names = node_names(folder, may_be_missing=may_be_missing)
    return sorted(int(match[1]) for name in names if (match := node.fullmatch(name)))


def _facts_of_driver() -> dict[int, NvmlGpu]:
    """The facts in the driver's files by device minor. Empty where they are hidden, as in some containers."""
    facts: dict[int, NvmlGpu] = {}
    for file in _DRIVER_DIRECTORY.glob("*/information"):
        # Nothing, if the GPU fell off the bus.
        values = _values(file, ":")
        minor = values.get("Device Minor", "")
        if _NUMBER.fullmatch(minor):
            uuid = values.get("GPU UUID", "")
            # Until something has opened the GPU, the driver writes question marks.
            facts[int(minor)] = NvmlGpu(
                int(minor), file.parent.name, "" if "?" in uuid else uuid, values.get("Model", "")
            )
    return facts


def _values(file: Path, separator: str) -> dict[str, str]:
    """The values in a file of the kernel with a name and a value in each line."""
    lines = content_of(str(file)).decode(errors="replace").splitlines()
    parts = [line.partition(separator) for line in map(str.strip, lines)]
    return {name.strip(): value.strip() for name, _, value in parts}


# Cached: the library takes up to a second for each GPU, and these facts do not change while a process runs.
@functools.cache
def _gpus_of_library(nodes_variable: str, nvml_variable: str) -> tuple[Mapping[int, NvmlGpu], bool]:
    """What the library knows, by device minor, and whether a GPU is lost."""
    with open_nvml({NODES_VARIABLE: nodes_variable, NVML_VARIABLE: nvml_variable}) as library:
        gpus = library.gpus() if library is not None else ()
        return {gpu.minor: gpu for gpu in gpus}, library is not None and library.lost_count > 0


def find_amd(env: Mapping[str, str] = os.environ) -> Found:
    """Return every GPU of AMD whose render node this process may open."""
    folder = node_directory(env)
    root = Path("/")
    if is_simulated(env):
        root = folder
        node_names(folder, may_be_missing=False)
    system = root / _AMD_SYSTEM_DIRECTORY
    nodes = [
        folder / "dri" / f"renderD{minor}"
        for minor in _minors(folder / "dri", _AMD_NODE, may_be_missing=True)
        # The file is empty if the node belongs to no PCI device.
        if content_of(f"{system}/renderD{minor}/device/vendor").strip().decode(errors="replace") == _AMD_PCI_VENDOR
    ]
    lacks = {node: why_closed(node) for node in nodes}
    usable = sorted(
        (node for node in nodes if not lacks[node]), key=lambda node: os.path.realpath(system / node.name / "device")
    )
    archs = _amd_archs(root / _AMD_TOPOLOGY)
    gpus = tuple(
        Gpu(index, node, arch=archs.get(node.name, ""), control=folder / _AMD_CONTROL_NODE)
        for index, node in enumerate(usable)
    )
    return Found(gpus, tuple(filter(None, lacks.values())))


def _amd_archs(topology: Path) -> dict[str, str]:
    """Return the architectures of GPUs by the names of their nodes. Empty where the kernel's files are hidden."""
    archs = {}
    for file in topology.glob("*/properties"):
        # The kernel shows the GPUs of other containers, without their content.
        values = _values(file, " ")
        version = values.get("gfx_target_version", "")
        if _NUMBER.fullmatch(version) and (number := int(version)):
            arch = f"gfx{number // 10000}{number // 100 % 100}{number % 100:x}"
            archs[f"renderD{values.get('drm_render_minor', '')}"] = arch
    return archs


@dataclass(frozen=True, slots=True)
class Vendor:
    """A maker of GPUs, with everything that differs between vendors."""

    name: str  # as backends name it
    visible_variable: str  # says which GPUs a process sees, and in which order
    find: Callable[[Mapping[str, str]], Found]  # finds its GPUs, without touching them
    # Opens the library that reports memory, for the length of a `with` block; gives None if there is none.
    open_telemetry: Callable[[], AbstractContextManager[Nvml | None]] = nullcontext
    rank_env: Mapping[str, str] = field(default_factory=dict)  # that ranks need beside `visible_variable`
    remark: str = ""  # a warning for users


# $CUDA_VISIBLE_DEVICES, $HIP_VISIBLE_DEVICES (library): the leased GPUs of the rank. In the runner it is yours, and
# limits the GPUs that worlds get.
# $CUDA_DEVICE_ORDER (library): GPUs without a known UUID are named by their numbers in this order. It replaces your
# value (default: PCI_BUS_ID).
NVIDIA = Vendor("nvidia", "CUDA_VISIBLE_DEVICES", find_nvidia, open_nvml, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
AMD = Vendor("amd", "HIP_VISIBLE_DEVICES", find_amd, remark="AMD's GPUs: this has not been tried on hardware")

# Vendors whose GPUs can be found and leased, by the names in backends.
VENDORS = {vendor.name: vendor for vendor in (NVIDIA, AMD)}


@dataclass(frozen=True, slots=True)
class VisibleGpus:
    """GPUs that this process may use."""

    gpus: tuple[Gpu, ...]  # in the order in which CUDA counts them
    remark: str = ""  # why there are fewer than `CUDA_VISIBLE_DEVICES` names, or than the machine has
    way_out: str = ""  # how to have more, if there is a remark


def gpus_present(env: Mapping[str, str] = os.environ, vendor: Vendor = NVIDIA) -> tuple[Gpu, ...]:
    """Return every GPU here whose device node this process may open. A container has nodes for its own GPUs only."""
    return vendor.find(env).gpus


def visible_gpus(
    present: Sequence[Gpu],
    env: Mapping[str, str] = os.environ,
    vendor: Vendor = NVIDIA,
    *,
    archs: Sequence[str] = (),
) -> VisibleGpus:
    """Return the GPUs that `CUDA_VISIBLE_DEVICES`, or the variable of another vendor, allows, read as CUDA reads it.

    The list ends at the first entry that is not a device, and a list that names a device twice allows none (CUDA
    programming guide, "CUDA Environment Variables"). GPUs in MIG mode are left out: MIG instances are not handed out.
    So are those of other architectures than `archs`, such as "sm_90"; empty for any.
    """
    variable = vendor.visible_variable
    chosen = list(present)
    lacks: dict[str, str] = {}
    if (value := env.get(variable)) is not None:
        chosen, remark = _chosen(value, present, f"{variable}={value[:80]!r}")
        if remark:
            lacks[remark] = f"Correct {variable}, or unset it to have every GPU of the machine."
    if split := [gpu for gpu in chosen if gpu.is_mig]:
        chosen = [gpu for gpu in chosen if not gpu.is_mig]
        remark = f"{', '.join(map(str, split))} in MIG mode, and MIG instances are not handed out"
        lacks[remark] = "Switch MIG mode off (`nvidia-smi -mig 0`), or use whole GPUs of another machine."
    if archs and (unfit := [gpu for gpu in chosen if gpu.arch not in archs]):
        chosen = [gpu for gpu in chosen if gpu.arch in archs]
        which = ", ".join(f"GPU {gpu.index} is {gpu.arch or 'of an unknown architecture'}" for gpu in unfit)
        remark = f"{which}, and the target needs {' or '.join(archs)}"
        lacks[remark] = "Run the target on a machine with such GPUs, or correct its gpu_archs."
    return VisibleGpus(tuple(chosen), "; ".join(lacks), next(iter(lacks.values()), ""))


def _chosen(value: str, present: Sequence[Gpu], quoted: str) -> tuple[list[Gpu], str]:
    """The GPUs that a value of the variable allows, and why they are fewer than it names."""
    if not value.strip():
        return [], f"{quoted} hides every device"
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in value.split(",")):
        if entry.startswith("MIG-"):
            return [], f"{quoted} names a MIG instance, and those are not handed out: name whole GPUs"
        gpu = _named(entry, present)
        if gpu is None:
            return chosen, f"{quoted}: {entry!r} is no device here, and the entries after it are ignored"
        if gpu in chosen:
            return [], f"{quoted} names device {entry} twice, and then none is shown"
        chosen.append(gpu)
    return chosen, ""


def _named(entry: str, present: Sequence[Gpu]) -> Gpu | None:
    if _NUMBER.fullmatch(entry):
        index = int(entry)
        return present[index] if index < len(present) else None
    if not entry.startswith("GPU-"):
        return None
    # CUDA accepts the first letters of a UUID, if no other UUID begins with them.
    fitting = [gpu for gpu in present if gpu.uuid.startswith(entry)]
    return fitting[0] if len(fitting) == 1 else None
