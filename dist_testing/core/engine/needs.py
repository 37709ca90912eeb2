"""Checks what a case needs of the machine, before a rank starts: one decision, one skip reason."""

from __future__ import annotations

import importlib

from dist_testing.core.ground.add_ons import AddOn, add_on_named, add_ons, blaming
from dist_testing.core.ground.backends import Backend, any_declared, parts_of
from dist_testing.core.ground.case import Case, CaseBody
from dist_testing.core.ground.errors import AddOnError, UsageError
from dist_testing.core.ground.skips import TEST_SKIPS
from dist_testing.core.ground.spec import Spec
from dist_testing.core.launch.isolation import isolation_named


class Lack(str):
    """A skip reason with a way out.

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
    """Refuse a case that only an add-on can run, if it is missing.

    Raises:
        AddOnError: If one is missing.
    """
    isolation = isolation_named(case.isolation)
    for name, is_needed, wish in (
        ("gpus", spec.gpus(case.world_size) > 0, f"{spec.gpus(case.world_size)} GPU(s)"),
        ("nodes", case.nodes > 1, f"nodes = {case.nodes}"),
        ("threads", isolation.in_process, f'isolation "{isolation.name}"'),
    ):
        if is_needed:
            add_on_named(name, f"{case.name} with {wish}")
    for name, setting in case.settings.items():
        add_on_named(name, f"{case.name} with {name} = {setting}")


def missing_need(spec: Spec, world_size: int, nodes: int = 1) -> str | None:
    """Return why a world of this size on so many nodes cannot run here; None if it can run.

    The reason is a `Lack` if there is a way out.

    Raises:
        UsageError: If the import of the module that registers the backend fails.
    """
    backend = spec.backend
    case = Case("", world_size, CaseBody(""), 0.0, spec.isolation, nodes=nodes)
    try:
        check_add_ons(case, spec)
    except AddOnError:
        # The engine refuses the case by this error; a skip would hide it.
        return None
    for add_on in add_ons():
        if add_on.missing and add_on.wanted(case, spec) and (lack := _missing(add_on, case, spec)):
            return lack
    if backend.register_module and (lack := _lacking_module(backend)):
        return lack

    import torch.distributed as dist

    if not dist.is_available():
        return TEST_SKIPS["backend_unavailable"].message
    for part in parts_of(backend.torch_backend):
        if not dist.is_backend_available(part):
            return missing_backend(part, backend.register_module)
    if not backend.gpus_per_rank and not _has_device(backend.device):
        return f"{TEST_SKIPS['no_accelerator'].message} (device {backend.device}, backend {backend.name})"
    return None


def _missing(add_on: AddOn, case: Case, spec: Spec) -> str:
    with blaming(add_on.name, "its look at the machine"):
        lack: str = add_on.load("missing")(case, spec)
    return lack


def missing_backend(torch_backend: str, register_module: str = "") -> str:
    """Return the skip reason for a backend, one name as torch knows it, that this torch does not have.

    `register_module` is the imported module that should have registered the name; "" for none.
    """
    if any_declared(torch_backend, lambda declared: declared.uses_nccl):
        # torch's own text, which people search for.
        return TEST_SKIPS["nccl"].message
    remark = f"torch was built without {torch_backend}"
    if register_module:
        remark += f", and module {register_module} does not register it"
    return f"{TEST_SKIPS['backend_unavailable'].message} ({remark})"


def _lacking_module(backend: Backend) -> str:
    """Import the module that registers the backend. Returns why that is impossible; "" if it worked.

    Raises:
        UsageError: If the module exists and its import fails.
    """
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


def _has_device(device: str) -> bool:
    """Return whether torch knows a type of device and finds one. Makes no context on it."""
    if device == "cpu":
        return True
    import torch

    try:
        return bool(torch.get_device_module(device).is_available())
    except RuntimeError:
        # torch does not know the name.
        return False
