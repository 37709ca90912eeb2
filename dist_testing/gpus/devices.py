"""GPUs by vendor, and the ones that this process may use.

device nodes -> the GPUs that are here        CUDA_VISIBLE_DEVICES -> the ones of them that this process may use
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from dist_testing.gpus.amd import find_amd
from dist_testing.gpus.gpu import Found, Gpu
from dist_testing.gpus.nvidia import find_nvidia
from dist_testing.gpus.nvml import Nvml, open_nvml

_SMALL_NUMBER = re.compile(r"[0-9]{1,9}")


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
    if _SMALL_NUMBER.fullmatch(entry):
        index = int(entry)
        return present[index] if index < len(present) else None
    if not entry.startswith("GPU-"):
        return None
    # CUDA accepts the first letters of a UUID, if no other UUID begins with them.
    fitting = [gpu for gpu in present if gpu.uuid.startswith(entry)]
    return fitting[0] if len(fitting) == 1 else None
