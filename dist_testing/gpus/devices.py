"""Which GPUs a process may use.

device nodes -> which GPUs are there        CUDA_VISIBLE_DEVICES -> which of them this process may use
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dist_testing.gpus.gpu import Gpu
from dist_testing.gpus.vendors import NVIDIA, Vendor

__all__ = ["VisibleGpus", "gpus_present", "visible_gpus"]

_SMALL_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class VisibleGpus:
    """GPUs that this process may use.

    Attributes:
        gpus: In the order in which CUDA counts them.
        remark: Why there are fewer than `CUDA_VISIBLE_DEVICES` names, or than there are; "" if there are not.
        way_out: What to do about that; "" if `remark` is.
    """

    gpus: tuple[Gpu, ...]
    remark: str = ""
    way_out: str = ""


def gpus_present(env: Mapping[str, str] = os.environ, vendor: Vendor = NVIDIA) -> tuple[Gpu, ...]:
    """Every GPU that has a device node here which this process may open. A container has nodes for its own only.

    Raises:
        GpuError: If the folder of the nodes cannot be read, or a simulated one does not exist.
    """
    return vendor.find(env).gpus


def visible_gpus(present: Sequence[Gpu], env: Mapping[str, str] = os.environ, vendor: Vendor = NVIDIA) -> VisibleGpus:
    """Those that `CUDA_VISIBLE_DEVICES` allows, read as CUDA reads it, or the variable of another vendor.

    The list ends at the first entry that is no device, and one that names a device twice gives none (CUDA programming
    guide, "CUDA Environment Variables"). GPUs that are divided are left out: their parts are not handed out.

    Args:
        present: GPUs of the machine.
        env: Where the variable is looked up.
        vendor: Of the GPUs.
    """
    variable = vendor.visible_variable
    value = env.get(variable)
    if value is None:
        chosen, remark = list(present), ""
    else:
        chosen, remark = _chosen(value, present, f"{variable}={value[:80]!r}")
    way_out = f"Correct {variable}, or unset it to have every GPU of the machine." if remark else ""
    if split := [gpu for gpu in chosen if gpu.is_mig]:
        chosen = [gpu for gpu in chosen if not gpu.is_mig]
        which = ", ".join(f"GPU {gpu.index} ({gpu.node})" for gpu in split)
        remark = "; ".join(filter(None, [remark, f"{which} in MIG mode, and MIG instances are not handed out"]))
        way_out = way_out or "Switch MIG mode off (`nvidia-smi -mig 0`), or use whole GPUs of another machine."
    return VisibleGpus(tuple(chosen), remark, way_out)


def _chosen(value: str, present: Sequence[Gpu], quoted: str) -> tuple[list[Gpu], str]:
    """What a value of the variable leaves, and why that is less than it names."""
    if not value.strip():
        return [], f"{quoted} hides every device"
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in value.split(",")):
        if entry.startswith("MIG-"):
            return [], f"{quoted} names a MIG instance, and those are not handed out: name whole GPUs"
        gpu = _named(entry, present)
        if gpu is None:
            return chosen, f"{quoted}: {entry!r} is no device here, and what follows is ignored"
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
    # CUDA takes the first letters of a UUID for it, if no other begins so.
    fitting = [gpu for gpu in present if gpu.uuid.startswith(entry)]
    return fitting[0] if len(fitting) == 1 else None
