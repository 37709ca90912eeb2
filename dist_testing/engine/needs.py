"""What a case needs of the machine, checked before a rank starts: one decision, one reason."""

from __future__ import annotations

import importlib
import os

from dist_testing.errors import GpuError
from dist_testing.gpus.devices import vendor_named, visible_gpus
from dist_testing.skips import TEST_SKIPS, gpus_reason
from dist_testing.spec import Spec

__all__ = ["Lack", "missing_need"]


class Lack(str):
    """A reason, with what to do about it.

    Attributes:
        way_out: One line; "" if there is nothing but another machine.
    """

    __slots__ = ("way_out",)

    way_out: str

    def __new__(cls, reason: str, way_out: str = "") -> Lack:
        """One reason."""
        lack = super().__new__(cls, reason)
        lack.way_out = way_out
        return lack


def missing_need(spec: Spec, world_size: int) -> str | None:
    """Why a world of this size cannot run here, as a `Lack` if something is to be done about it; None if it can.

    Args:
        spec: What the target asks for.
        world_size: Ranks of the case.
    """
    backend = spec.backend
    if (gpus := spec.gpus(world_size)) and (lack := _lacking_gpus(gpus, backend.vendor)):
        return lack

    if backend.register_module:
        try:
            importlib.import_module(backend.register_module)
        except ImportError as error:
            return f"{TEST_SKIPS['backend_unavailable'].message} ({backend.register_module}: {error})"

    import torch.distributed as dist

    if not dist.is_available():
        return TEST_SKIPS["backend_unavailable"].message
    if not dist.is_backend_available(backend.torch_backend):
        if backend.torch_backend == "nccl":
            return TEST_SKIPS["nccl"].message
        return f"{TEST_SKIPS['backend_unavailable'].message} (torch was built without {backend.torch_backend})"
    return None


def _lacking_gpus(gpus: int, name: str) -> str:
    """Why so many of a vendor's cannot be had, however long one waits; "" if they can."""
    vendor = vendor_named(name)
    if vendor is None:
        return f"{TEST_SKIPS['no_accelerator'].message} (GPUs by {name} are not supported, only by nvidia and amd)"
    try:
        found = vendor.find(os.environ)
    except GpuError as error:
        what, *_, way_out = str(error).splitlines()
        return Lack(f"{gpus_reason(gpus)} ({what} {way_out})", way_out)
    visible = visible_gpus(found.gpus, vendor=vendor)
    if len(visible.gpus) >= gpus:
        return ""
    remark, way_out = visible.remark, visible.way_out
    if not remark and len(found.gpus) >= gpus:
        remark = f"{vendor.visible_variable} names no more of {len(found.gpus)}"
        way_out = f"Let {vendor.visible_variable} name {gpus} GPU(s), or unset it to have every GPU of the machine."
    remarks = [f"found {len(visible.gpus)}", remark, *found.left_out, vendor.remark]
    return Lack(f"{gpus_reason(gpus)} ({'; '.join(filter(None, remarks))})", way_out)
