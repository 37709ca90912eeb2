"""Lists the backends that tests can name.

dist_testing declares its backends once, in Starlark (`//backends`). `backends.json` beside this file is a copy of that
table: `./bazelw run //tools/docs:backends` writes it, and a test fails when the two differ. A repository can add
backends: they come with the spec of the target under Bazel, from the hook `pytest_dist_backends` under plain pytest. An
installed package can bring one, too, by torch's entry points.

No other module compares the names of backends or torch backend strings. Modules ask for a declared fact instead.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from dist_testing.core.ground.codec import WrongValueError, shape_of
from dist_testing.core.ground.error_text import did_you_mean
from dist_testing.core.ground.errors import SpecError, UsageError

_NAME = re.compile(r"[a-z][a-z0-9_]*")
# The group in which packages publish backends, since torch 2.14.
_ENTRY_POINTS = "torch.distributed.backends"
# Devices that torch itself knows. A plug-in registers any other.
_TORCH_DEVICES = ("cpu", "cuda", "xpu")


@dataclass(frozen=True, slots=True)
class Backend:
    """One communication backend. The fields and their defaults are the arguments of `declare_backend`.

    Attributes:
        name: Name in targets, tags and options: "gloo", "cuda_gloo", "nccl".
        torch_backend: Argument of `init_process_group`, such as "gloo" for both "gloo" and "cuda_gloo"; or a name for
            each device, such as "cpu:gloo,cuda:nccl".
        device: Type of the device of a rank's tensors: "cpu", "cuda", "xpu", or a plug-in's.
        features: Features that a test suite may expect, by their names in the table.
        gpus_per_rank: GPUs that a rank needs by default; 0 if the library leases none.
        vendor: Maker of those GPUs: "nvidia", ...; "" without GPUs.
        register_module: Module whose import registers the backend with torch; "" for torch's own.
        timeout_s: Limit of a case without a limit of its own, in seconds.
        env: Environment variables of every rank, unless the user has set them.
        in_process: A group lives inside one process, so its ranks are threads.
        binds_device: The library passes the rank's device to `init_process_group`.
        ends_with_process: A process may end without destroying the group.
        records_calls: torch's flight recorder has each collective of the backend until it has ended, so the library can
            prove that a rank hangs in it.
        shares_gpus: Several ranks may use one GPU, if a target says so.
        uses_nccl: NCCL or RCCL moves the data, so its checks and version apply.
        device_default: Tests that name only a device of this type use this backend.
    """

    name: str
    torch_backend: str
    device: str
    features: tuple[str, ...] = ()
    gpus_per_rank: int = 0
    vendor: str = ""
    register_module: str = ""
    timeout_s: int = 300
    env: Mapping[str, str] = field(default_factory=dict)
    in_process: bool = False
    binds_device: bool = False
    ends_with_process: bool = False
    records_calls: bool = False
    shares_gpus: bool = False
    uses_nccl: bool = False
    device_default: bool = False

    @classmethod
    def from_json(cls, entry: object) -> Backend:
        """Make a backend from its declaration. Ignores keys that only the build needs.

        Raises:
            SpecError: If a field is missing, of the wrong type, or impossible.
        """
        if not isinstance(entry, dict):
            raise SpecError(f"a backend is described by {entry!r}; expected an object")
        known = {field.name: entry[field.name] for field in fields(cls) if field.name in entry}
        try:
            backend: Backend = shape_of(cls).read(known)
        except WrongValueError as error:
            raise SpecError(f"backend {entry.get('name')!r}: {error}") from None
        for name, problem in _problems(backend).items():
            value = getattr(backend, name)
            raise SpecError(f"backend {backend.name!r}: {name} = {value!r} is out of range: {problem}")
        return replace(backend, env=MappingProxyType(backend.env))


def _problems(backend: Backend) -> dict[str, str]:
    """Return the invalid fields, each with the rule that it breaks. `declare.bzl` has the same rules."""
    device, gpus, vendor = backend.device, backend.gpus_per_rank, backend.vendor
    pairs = [part.split(":") for part in backend.torch_backend.split(",")]
    devices = [pair[0] for pair in pairs if len(pair) == 2]
    is_mixed = len(devices) == len(pairs) == len(set(devices))
    is_torch_backend = (is_mixed or len(pairs) == len(pairs[0]) == 1) and all(
        word and " " not in word for pair in pairs for word in pair
    )
    table = _table()
    unknown = [feature for feature in backend.features if feature not in table["features"]]
    rules = (
        ("name", _NAME.fullmatch(backend.name), 'lower-case letters, digits and "_", beginning with a letter'),
        ("torch_backend", is_torch_backend, 'one name, or one for each device, such as "cpu:gloo,cuda:nccl"'),
        ("torch_backend", not is_mixed or device in devices, f"it has no backend for the device {device!r}"),
        (
            "device",
            device in _TORCH_DEVICES or (device and backend.register_module),
            f"torch knows {', '.join(_TORCH_DEVICES)}; register_module names the module that brings another one",
        ),
        ("features", not unknown, f"{unknown} is not among {', '.join(table['features'])}"),
        (
            "gpus_per_rank",
            gpus >= 0 and (device not in _TORCH_DEVICES or (gpus == 0) == (device == "cpu")),
            'a rank on "cuda" or "xpu" owns at least one GPU, a rank on "cpu" none',
        ),
        ("vendor", bool(vendor) == (gpus > 0), "it is the maker of the GPUs that ranks own, empty if they own none"),
        ("vendor", not vendor or vendor in table["vendors"], f"one of {', '.join(table['vendors'])}"),
        ("timeout_s", backend.timeout_s > 0, "a number of seconds above 0"),
        ("shares_gpus", not backend.shares_gpus or gpus > 0, "ranks that own no GPU have none to share"),
    )
    return {name: rule for name, holds, rule in reversed(rules) if not holds}


@functools.cache
def _table() -> Any:
    return json.loads(resources.files("dist_testing").joinpath("backends.json").read_text(encoding="utf-8"))


@functools.cache
def _own() -> Mapping[str, Backend]:
    return {name: Backend.from_json(entry) for name, entry in _table()["backends"].items()}


# Backends that the current session has added.
_added: dict[str, Backend] = {}
# Names of backends without a declaration here: a spec has the declaration of one backend, and the names of others.
_sibling_names: set[str] = set()


def backends() -> Mapping[str, Backend]:
    """Return every declared backend by name: those of dist_testing, then those that the session has added."""
    return MappingProxyType({**_own(), **_added})


def add_backends(declared: Iterable[tuple[Backend, str]], sibling_names: Iterable[str] = ()) -> None:
    """Add the backends of a repository. They replace those of an earlier session of this process.

    A UsageError refuses two declarations of the same name, or for the default of the same device.

    Args:
        declared: Backends, each with the place of its declaration, for errors. Equal declarations may be repeated.
        sibling_names: Names of other existing backends, which this session does not use.
    """
    added: dict[str, tuple[Backend, str]] = {}
    for backend, source in declared:
        other, place = added.get(backend.name, (_own().get(backend.name), "dist_testing itself"))
        if other is not None and other != backend:
            raise UsageError(
                f"Backend {backend.name!r} is declared twice: by {place} and by {source}.\n"
                "A target, a tag and an option name a backend, so a name must mean one backend.\n"
                f"Give one of them another name{', or delete one' if place != 'dist_testing itself' else ''}."
            )
        if backend.name in _own():
            continue
        for former in (*_own().values(), *(other for other, _ in added.values())):
            if former.name != backend.name and backend.device_default and _is_default(former, backend.device):
                raise UsageError(
                    f"{source}: backend {backend.name!r} says device_default = True for device {backend.device!r}.\n"
                    f"Backend {former.name!r} is the default of that device, and there can be only one.\n"
                    "Drop device_default."
                )
        added[backend.name] = (backend, source)
    _sibling_names.clear()
    _sibling_names.update(sibling_names)
    _added.clear()
    _added.update({name: backend for name, (backend, _) in added.items()})


def _is_default(backend: Backend, device: str) -> bool:
    return backend.device_default and backend.device == device


def backend_named(name: str) -> Backend:
    """Return the backend of that name, or raise UsageError."""
    table = backends()
    if name in table:
        return table[name]
    if installed := _installed_backend(name):
        return installed
    raise UsageError(
        f"Backend {name!r} is not declared.\n"
        f"The declared backends are {', '.join(sorted(table))}.\n"
        f"{did_you_mean(name, table, 'Name one of these.')} You can also declare your own (docs/backends.md)."
    )


def _installed_backend(name: str) -> Backend | None:
    """Return the backend that a package has registered with torch 2.14 or newer by an entry point; None if none has.

    "-" in the package's name is "_" here. What no entry point tells has the value that is right for most backends.
    """
    offered = {point.name.lower().replace("-", "_"): point.name for point in entry_points(group=_ENTRY_POINTS)}
    if name not in offered:
        return None
    from torch import distributed, version

    torch_name = offered[name].lower()
    try:
        # This calls the entry point.
        if not distributed.is_backend_available(torch_name):
            return None
    except Exception as error:
        raise UsageError(
            f"Backend {name!r}: its entry point {offered[name]} of {_ENTRY_POINTS!r} failed: {error}\n"
            f"Its cause: {error.__cause__!r}.\n"
            "An installed package offers the backend to torch. Correct or update that package."
        ) from error
    devices = distributed.Backend.backend_capability[torch_name]
    device = next((known for known in _TORCH_DEVICES if known in devices), None)
    if device is None:
        raise UsageError(
            f"Backend {name!r} of an installed package is for {', '.join(devices) or 'no device'}.\n"
            f"The library knows ranks on {', '.join(_TORCH_DEVICES)} without a declaration.\n"
            "Declare the backend (docs/backends.md), with the module that registers its device."
        )
    vendor = {"cpu": "", "cuda": "amd" if version.hip else "nvidia", "xpu": "intel"}[device]
    backend = Backend(
        name, torch_name, device, gpus_per_rank=1 if vendor else 0, vendor=vendor, binds_device=bool(vendor)
    )
    _added[name] = backend
    return backend


def check_backend_name(name: str) -> None:
    """Raise UsageError if no backend of that name exists, not even one that only other targets use."""
    if name not in _sibling_names:
        backend_named(name)


def check_features(features: Iterable[str]) -> None:
    """Raise UsageError for a feature that does not exist."""
    known = _table()["features"]
    for feature in features:
        if feature not in known:
            raise UsageError(
                f"Feature {feature!r} of a backend is not known.\n"
                f"The known features are {', '.join(known)}.\n"
                f"{did_you_mean(feature, known, 'Name one of them.')}"
            )


def device_backend(device: str) -> Backend | None:
    """Return the backend of tests that name only a device of this type; None if the device has no default."""
    return next((backend for backend in backends().values() if _is_default(backend, device)), None)


def default_backend() -> Backend:
    """Return the backend of tests that name neither a backend nor a device."""
    found = device_backend("cpu")
    assert found is not None, "the table has a default for the CPU"
    return found


def parts_of(torch_backend: str) -> tuple[str, ...]:
    """Return the names in a torch backend string: ("gloo", "nccl") for "cpu:gloo,cuda:nccl"."""
    return tuple(part.rpartition(":")[2] for part in torch_backend.lower().split(","))


def any_declared(torch_backend: str, fact: Callable[[Backend], bool]) -> bool:
    """Return whether a fact holds for a declared backend with one of the torch names in the string."""
    return any(fact(declared) for part in parts_of(torch_backend) for declared in _declared_as(part))


def all_declared(torch_backend: str, fact: Callable[[Backend], bool]) -> bool:
    """Return whether every torch name in the string is declared, and a fact holds for all backends with these names."""
    found = [_declared_as(part) for part in parts_of(torch_backend)]
    return all(found) and all(fact(declared) for every in found for declared in every)


def _declared_as(part: str) -> list[Backend]:
    return [backend for backend in backends().values() if backend.torch_backend.lower() == part]
