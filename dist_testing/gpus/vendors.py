"""Who makes GPUs, and what is different from one to the other: the only place that knows."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from dist_testing.gpus.amd import find_amd
from dist_testing.gpus.gpu import Found
from dist_testing.gpus.nvidia import find_nvidia
from dist_testing.gpus.nvml import Nvml, open_nvml

__all__ = ["AMD", "NVIDIA", "Vendor", "vendor_named"]


@dataclass(frozen=True, slots=True)
class Vendor:
    """One vendor.

    Attributes:
        name: As backends name it.
        visible_variable: The variable that says which GPUs a process sees, and in which order.
        find: What finds its GPUs. Touches no GPU.
        telemetry: Opens what tells of memory; None if nothing does.
        rank_env: What ranks need beside `visible_variable`.
        remark: What a user has to know before trusting it; "" if nothing.
    """

    name: str
    visible_variable: str
    find: Callable[[Mapping[str, str]], Found]
    telemetry: Callable[[Mapping[str, str]], AbstractContextManager[Nvml | None]] | None = None
    rank_env: Mapping[str, str] = field(default_factory=dict)
    remark: str = ""

    def open_telemetry(self, env: Mapping[str, str] = os.environ) -> AbstractContextManager[Nvml | None]:
        """What tells of memory, for as long as the block lasts; None if nothing does."""
        return self.telemetry(env) if self.telemetry is not None else contextlib.nullcontext()


# A GPU whose UUID nobody tells is named by number, and this is the order that it counts in.
NVIDIA = Vendor("nvidia", "CUDA_VISIBLE_DEVICES", find_nvidia, open_nvml, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"})
AMD = Vendor("amd", "HIP_VISIBLE_DEVICES", find_amd, remark="AMD's GPUs: nobody has tried this on hardware")

_VENDORS = {vendor.name: vendor for vendor in (NVIDIA, AMD)}


def vendor_named(name: str) -> Vendor | None:
    """A backend's vendor; None if its GPUs cannot be found and leased."""
    return _VENDORS.get(name)
