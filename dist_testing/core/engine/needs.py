"""Checks what a case needs of the machine, before a rank starts: one decision, one skip reason."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dist_testing.core.engine.interrupts import raising_interrupt_again
from dist_testing.core.ground.add_ons import add_on_named, add_ons, blaming, call_parts
from dist_testing.core.ground.backends import Backend, parts_of
from dist_testing.core.ground.case import Case, CaseBody
from dist_testing.core.ground.errors import AddOnError, UsageError
from dist_testing.core.ground.skips import TEST_SKIPS
from dist_testing.core.ground.spec import Spec
from dist_testing.core.launch.isolation import isolation_named


class Lack(str):
    """A skip reason that is about hardware, or has a way out.

    Attributes:
        way_out: One line; "" if only another machine helps.
    """

    __slots__ = ("way_out",)

    way_out: str

    def __new__(cls, reason: str, way_out: str = "") -> Lack:
        """Make a reason."""
        lack = super().__new__(cls, reason)
        lack.way_out = way_out
        return lack


def check_add_ons(case: Case, spec: Spec) -> None:
    """Raise AddOnError if an add-on is missing without which the case cannot run."""
    if owner := isolation_named(case.isolation).in_process_of:
        add_on_named(owner, f'{case.name} with isolation "{case.isolation}"')
    if spec.backend.gpus_per_rank:
        add_on_named("gpus", f"{case.name} with backend {spec.backend.name}")
    for name, setting in {**spec.settings, **case.settings}.items():
        add_on_named(name, f"{case.name} with {name} = {setting}")


def missing_need(spec: Spec, world_size: int, settings: Mapping[str, Any] = MappingProxyType({})) -> str | None:
    """Return why a world of this size cannot run here, with what its test asks of add-ons; None if it can run.

    The reason is a `Lack` if it is about hardware of an add-on, or there is a way out.

    Raises:
        UsageError: If the import of torch, or of the module that registers the backend, fails.
    """
    backend = spec.backend
    case = Case("", world_size, CaseBody(""), 0.0, spec.isolation, settings=settings)
    try:
        check_add_ons(case, spec)
    except AddOnError:
        # The engine refuses the case by this error; a skip would hide it.
        return None
    for add_on in add_ons():
        if add_on.missing and add_on.wanted(case, spec):
            with blaming(add_on.name, "its look at the machine"):
                lack: str = add_on.load("missing")(case, spec)
            if lack:
                return lack
    if backend.register_module and (unregistered := _lacking_module(backend)):
        return unregistered

    dist = import_torch()
    if not dist.is_available():
        return TEST_SKIPS["backend_unavailable"].message
    for part in parts_of(backend.torch_backend):
        if not dist.is_backend_available(part):
            return missing_backend(part, backend.register_module)
    # Those that a world needs have been counted above.
    if backend.device != "cpu" and not backend.gpus_per_rank and not device_count(backend.device, spec):
        return f"{TEST_SKIPS['no_accelerator'].message} (device {backend.device}, backend {backend.name})"
    return None


def import_torch() -> Any:
    """Return the module `torch.distributed`. Raise UsageError if it cannot be imported."""
    try:
        with raising_interrupt_again():
            import torch.distributed as dist
    # A library of CUDA that is missing is an OSError.
    except (ImportError, OSError) as error:
        raise UsageError(
            f"torch cannot be imported: {_in_one_line(error)}.\n"
            "Ranks need it, even in tests that do not use it.\n"
            "Install your build of it (pip install torch, for example), or add it to the deps of the target."
        ) from error
    return dist


def missing_backend(torch_backend: str, register_module: str = "") -> str:
    """Return the skip reason for a backend, one name as torch knows it, that this torch does not have.

    `register_module` is the imported module that should have registered the name; "" for none.
    """
    if (of_torch := TEST_SKIPS.get(torch_backend)) is not None:
        # torch has a text for this backend, which people search for.
        return of_torch.message
    # A build may leave it out, and a version may not have it yet, such as "nccl2" before 2.14.
    remark = f"torch {sys.modules['torch'].__version__} has no {torch_backend}"
    if register_module:
        remark += f", and module {register_module} does not register it"
    return f"{TEST_SKIPS['backend_unavailable'].message} ({remark})"


def _lacking_module(backend: Backend) -> str:
    """Import the module that registers the backend. Return why it is missing; "" if it is not."""
    module = backend.register_module
    try:
        importlib.import_module(module)
    except ImportError as error:
        way_out = f"Install {module}, or add the library that holds it to the deps of the backend or the test."
        remark = f"backend {backend.name} needs module {module}: {error}. {way_out}"
        return Lack(f"{TEST_SKIPS['backend_unavailable'].message} ({remark})", way_out)
    except Exception as error:
        raise UsageError(
            f"Backend {backend.name!r}: its module {module} failed while it was imported: {_in_one_line(error)}\n"
            "The declaration names it in register_module, and its import must register the backend with torch.\n"
            f"Correct the module; `python -c 'import {module}'` shows the whole error."
        ) from error
    return ""


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def device_count(device: str, spec: Spec) -> int:
    """Return how many devices of a type this process may use, as an add-on or torch tells. Makes no context on them."""
    for _, count in call_parts("device_count", device, spec):
        if count is not None:
            return int(count)
    import torch

    try:
        module = torch.get_device_module(device)
        return int(module.device_count()) if module.is_available() else 0
    except RuntimeError:
        # torch does not know the name.
        return 0
