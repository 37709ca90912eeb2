"""Tells whether this machine can give a world its GPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dist_testing.core.engine.needs import Lack
from dist_testing.core.ground.case import Case
from dist_testing.core.ground.errors import GpuError
from dist_testing.core.ground.skips import TEST_SKIPS, gpus_reason
from dist_testing.core.ground.spec import Spec
from dist_testing.gpus.devices import gpus_present, vendor_named, visible_gpus


def missing(case: Case, spec: Spec) -> str:
    """Return why this machine cannot give a case its GPUs; "" if it can."""
    gpus = spec.gpus(case.world_size)
    return _lacking_gpus(gpus, spec.backend.vendor, spec.gpu_archs) if gpus else ""


def _lacking_gpus(gpus: int, name: str, archs: Sequence[str]) -> str:
    """Return why this machine cannot give so many GPUs of the vendor; "" if it can. Leases of others do not count."""
    vendor = vendor_named(name)
    if vendor is None:
        return f"{TEST_SKIPS['no_accelerator'].message} (GPUs by {name} are not supported, only by nvidia and amd)"
    try:
        found = vendor.find(os.environ)
    except GpuError as error:
        what, *_, way_out = str(error).splitlines()
        return Lack(f"{gpus_reason(gpus)} ({what} {way_out})", way_out)
    visible = visible_gpus(found.gpus, vendor=vendor, archs=archs)
    if len(visible.gpus) >= gpus:
        return ""
    remark, way_out = visible.remark, visible.way_out
    if not remark and len(found.gpus) >= gpus:
        remark = f"{vendor.visible_variable} names only {len(visible.gpus)} of {len(found.gpus)}"
        way_out = f"Let {vendor.visible_variable} name {gpus} GPU(s), or unset it to use every GPU of the machine."
    remarks = [f"found {len(visible.gpus)}", remark, *found.left_out, vendor.remark]
    return Lack(f"{gpus_reason(gpus)} ({'; '.join(filter(None, remarks))})", way_out)


def usable_gpus(vendor_name: str, archs: Sequence[str] = ()) -> int | None:
    """Return how many GPUs of a vendor this process may use; None if the vendor is not known.

    Raises:
        GpuError: If the GPUs cannot be found.
    """
    vendor = vendor_named(vendor_name)
    return None if vendor is None else len(visible_gpus(gpus_present(vendor=vendor), vendor=vendor, archs=archs).gpus)
