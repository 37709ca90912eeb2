"""Tells whether this machine can give a world its GPUs, and how many it has."""

from __future__ import annotations

import os

from dist_testing.core.engine.needs import Lack
from dist_testing.core.ground.case import Case
from dist_testing.core.ground.skips import TEST_SKIPS, gpus_reason
from dist_testing.core.ground.spec import Spec
from dist_testing.gpus.devices import NVIDIA, VENDORS, gpus_present, visible_gpus
from dist_testing.gpus.gpu import GpuError
from dist_testing.gpus.needs import needs_of

# Memory of the machine that a rank with a context on a GPU takes. Bytes.
_RANK_BYTES = 1000 << 20


def missing(case: Case, spec: Spec) -> str:
    """Return why this machine cannot give a case its GPUs; "" if it can. Leases of others do not count."""
    needs, name = needs_of(spec), spec.backend.vendor
    if not (gpus := needs.of(case.world_size)):
        return ""
    if (vendor := VENDORS.get(name)) is None:
        return f"{TEST_SKIPS['no_accelerator'].message} (GPUs by {name} are not supported, only by nvidia and amd)"
    try:
        found = vendor.find(os.environ)
    except GpuError as error:
        what, *_, way_out = str(error).splitlines()
        return Lack(f"{gpus_reason(gpus)} ({what} {way_out})", way_out)
    visible = visible_gpus(found.gpus, vendor=vendor, archs=needs.archs)
    if len(visible.gpus) >= gpus:
        return ""
    remark, way_out = visible.remark, visible.way_out
    if not remark and len(found.gpus) >= gpus:
        remark = f"{vendor.visible_variable} names only {len(visible.gpus)} of {len(found.gpus)}"
        way_out = f"Let {vendor.visible_variable} name {gpus} GPU(s), or unset it to use every GPU of the machine."
    remarks = [f"found {len(visible.gpus)}", remark, *found.left_out, vendor.remark]
    return Lack(f"{gpus_reason(gpus)} ({'; '.join(filter(None, remarks))})", way_out)


def device_count(device: str, spec: Spec) -> int | None:
    """Return how many devices of a type this process may use; None if that is not known. Makes no context on them."""
    if device not in ("cuda", spec.backend.device):
        return None
    # AMD's GPUs have the type "cuda", too.
    vendor = VENDORS.get(spec.backend.vendor) or (NVIDIA if device == "cuda" else None)
    if vendor is None:
        return None
    return len(visible_gpus(gpus_present(vendor=vendor), vendor=vendor, archs=needs_of(spec).archs).gpus)


def room(spec: Spec, world_size: int) -> tuple[int, str, int] | None:
    """Return how many worlds fit side by side, why not more, and the bytes of each; None if they need no GPUs."""
    needs = needs_of(spec)
    if not (each := needs.of(world_size)):
        return None
    try:
        found = device_count(spec.backend.device, spec) or 0
    except GpuError:
        # Each case reports it.
        found = 0
    if spec.target:
        # Bazel has reserved no more than those of the largest world.
        found = min(found, needs.of(max(spec.world_sizes)))
    return found // each, f"a world of {world_size} ranks needs {each} of {found} GPU(s)", each * _RANK_BYTES
