"""The GPUs that a target, or a run, asks for: the setting of the add-on; and whether this machine has them."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from dist_testing.core.engine.needs import Lack
from dist_testing.core.ground.backends import backends
from dist_testing.core.ground.case import Case
from dist_testing.core.ground.codec import WrongValueError, shape_of
from dist_testing.core.ground.errors import SpecError, UsageError
from dist_testing.core.ground.runfiles import declared_file
from dist_testing.core.ground.skips import TEST_SKIPS, gpus_reason
from dist_testing.core.ground.spec import MAX_WORLD_SIZE, Spec, is_world_size, not_of_build, number_in
from dist_testing.gpus.devices import NVIDIA, VENDORS, gpus_present, visible_gpus
from dist_testing.gpus.gpu import GpuError

# Promise value: as many GPUs as the target asks for.
ALL_GPUS = 1 << 30
# Schema of the file with the promise.
_PROMISE_SCHEMA = 1
# $DIST_TESTING_GPU_PROMISE (internal): runfiles path of the file with the promised GPUs. Only targets with GPUs depend
# on the file.
_PROMISE_VARIABLE = "DIST_TESTING_GPU_PROMISE"

# Memory of the machine that a rank with a context on a GPU takes. Bytes.
_RANK_BYTES = 1000 << 20

_Count = Annotated[int, range(1 << 31)]


@dataclasses.dataclass(frozen=True, slots=True)
class _OfTarget:
    """What the build rules write."""

    per_rank: _Count
    ranks_per_gpu: Annotated[int, range(1, MAX_WORLD_SIZE + 1)]
    archs: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Promise:
    schema: Annotated[int, range(_PROMISE_SCHEMA, _PROMISE_SCHEMA + 1)]
    promised: dict[str, _Count] | None


@dataclasses.dataclass(frozen=True, slots=True)
class GpuNeeds:
    """The GPUs that the ranks of a run need."""

    backend: str = ""  # name of the backend that the next two are for
    per_rank: int = 0  # GPUs that each rank needs
    ranks_per_gpu: int = 1  # ranks that share a GPU; 1 if each has its own
    archs: tuple[str, ...] = ()  # architectures of GPUs that the ranks can use, such as "sm_90"; empty for any
    promised: int | None = None  # GPUs that the configuration promises, which may be `ALL_GPUS`; None for no promise

    def __str__(self) -> str:
        return f"{self.per_rank} per rank"

    def of(self, world_size: int) -> int:
        """Return the number of GPUs that a world of `world_size` ranks needs."""
        return -(-world_size // self.ranks_per_gpu) * self.per_rank


def needs_of(spec: Spec) -> GpuNeeds:
    """Return what a run needs: what its target and the command line ask for; with another backend, its defaults."""
    asked: GpuNeeds = spec.settings.get("gpus", GpuNeeds())
    backend = spec.backend
    if asked.backend == backend.name:
        return asked
    return dataclasses.replace(asked, backend=backend.name, per_rank=backend.gpus_per_rank, ranks_per_gpu=1)


def of_target(spec: Spec, section: object) -> GpuNeeds:
    """Read what the build rules wrote, and what the configuration of the build promises."""
    try:
        read: _OfTarget = shape_of(_OfTarget).read(section)
    except WrongValueError as error:
        raise not_of_build(f"{spec.target}, gpus: {error}") from None
    file = declared_file(_PROMISE_VARIABLE)
    promised = None if file is None else read_promise(file, spec.backend.vendor)
    needs = GpuNeeds(spec.backend.name, read.per_rank, read.ranks_per_gpu, read.archs, promised)
    _check_sharing(f"{spec.target}: ranks_per_gpu = {needs.ranks_per_gpu}", needs, spec)
    return needs


def read_promise(path: Path, vendor: str) -> int | None:
    """Read how many GPUs of a vendor the configuration promises, which may be `ALL_GPUS`; None for no promise."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        promise: _Promise = shape_of(_Promise).read(content)
    except OSError as error:
        raise SpecError(
            f"The promise of GPUs {path} cannot be read: {error}.\n"
            "The build writes it into the runfiles of targets with GPUs; the test was started some other way.\n"
            "Run the target with `bazel test`, or the test file with pytest."
        ) from error
    except (ValueError, RecursionError, WrongValueError) as error:
        raise not_of_build(f"{path}: the promise is damaged: {error}") from error
    if promise.promised is None:
        return None
    if vendor not in promise.promised:
        raise not_of_build(f"{path}: the promise has nothing for {vendor}")
    return promise.promised[vendor]


def from_options(spec: Spec, given: Mapping[str, str]) -> GpuNeeds:
    """Return what a run needs whose command line says how many ranks share a GPU."""
    ((option, text),) = given.items()
    if not is_world_size(count := number_in(text)):
        raise UsageError(
            f"{option}={text}: expected a number from 1 to {MAX_WORLD_SIZE}.\n"
            "It sets how many ranks share a GPU; by default each rank has its own.\n"
            f"Write {option}=2, for example."
        )
    needs = dataclasses.replace(needs_of(spec), ranks_per_gpu=count)
    _check_sharing(f"{option}={text}", needs, spec)
    return needs


def _check_sharing(subject: str, needs: GpuNeeds, spec: Spec) -> None:
    if needs.ranks_per_gpu > 1 and not (spec.backend.shares_gpus and needs.per_rank == 1):
        sharing = [name for name, other in backends().items() if other.shares_gpus]
        raise UsageError(
            f"{subject} with backend {needs.backend} and {needs.per_rank} GPU(s) per rank.\n"
            "Ranks can share a GPU only if each needs one GPU and the backend allows it.\n"
            f"Use one of the backends {', '.join(sharing)}, or leave it out."
        )


def promised(spec: Spec, world_size: int) -> str:
    """Return the promise that a world of this size relies on; "" if the configuration promises fewer GPUs, or none."""
    needs = needs_of(spec)
    if needs.promised is None or not 0 < needs.of(world_size) <= needs.promised:
        return ""
    count = "all the GPUs that tests ask for" if needs.promised == ALL_GPUS else f"{needs.promised} GPU(s)"
    return f"{count} (--config=gpu, or the flag //dist_testing/config:gpus)"


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
