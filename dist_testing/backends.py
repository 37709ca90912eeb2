"""The backend table, as Python reads it.

Backends are declared once, in Starlark (`//backends`). `backends.json` beside this file is that table, written by
`./bazelw run //backends:update`; a test fails when the two differ.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Any

from dist_testing.errors import SpecError, UsageError

__all__ = ["Backend", "backend_named", "backends"]


@dataclass(frozen=True, slots=True)
class Backend:
    """One communication backend.

    Attributes:
        name: What targets say: "gloo", "cuda_gloo", "nccl".
        torch_backend: What `init_process_group` is told: "gloo" for both of the first two.
        device: Type of the device that a rank's tensors live on: "cpu" or "cuda".
        gpus_per_rank: GPUs that a rank needs unless the target says otherwise; 0 for a CPU backend.
        vendor: Who makes those GPUs: "nvidia", ..., or "" for a CPU backend.
        timeout_s: Limit of a case that names none, in seconds.
        register_module: Module whose import makes torch know the backend; "" for torch's own.
        env: Environment of every rank, unless the user has set the variable.
        isolations: How its ranks can be made; the first is how they are made where nobody says.
        features: What it can do, in the words of the table.
    """

    name: str
    torch_backend: str
    device: str
    gpus_per_rank: int
    vendor: str
    timeout_s: int
    register_module: str
    env: Mapping[str, str]
    isolations: tuple[str, ...]
    features: tuple[str, ...] = ()

    @property
    def in_process(self) -> bool:
        """Whether a group lives inside one process, so that its ranks are threads."""
        return self.isolations == ("thread",)

    @property
    def shares_gpus(self) -> bool:
        """Whether several ranks may use one GPU, where a target says so."""
        return "shared_gpu" in self.features

    @classmethod
    def from_json(cls, entry: object) -> Backend:
        """Read one entry of the table; keys that only the build needs are left to it.

        Raises:
            SpecError: If a field is missing or of the wrong type.
        """
        if not isinstance(entry, dict):
            raise SpecError(f"a backend is described by {entry!r}; expected an object")
        values: dict[str, Any] = {}
        for name, wanted in (
            ("name", str),
            ("torch_backend", str),
            ("device", str),
            ("gpus_per_rank", int),
            ("vendor", str),
            ("timeout_s", int),
            ("register_module", str),
            ("env", dict),
            ("isolations", list),
            ("features", list),
        ):
            value = entry.get(name)
            if type(value) is not wanted:
                raise SpecError(f"backend {entry.get('name')!r}: {name} = {value!r}; expected {wanted.__name__}")
            values[name] = value
        for name, holds in (
            ("name", bool(values["name"])),
            ("gpus_per_rank", values["gpus_per_rank"] >= 0),
            ("timeout_s", values["timeout_s"] > 0),
            ("isolations", bool(values["isolations"]) and all(isinstance(i, str) for i in values["isolations"])),
        ):
            if not holds:
                raise SpecError(f"backend {entry.get('name')!r}: {name} = {values[name]!r} is out of range")
        values["env"] = MappingProxyType({str(key): str(value) for key, value in values["env"].items()})
        values["isolations"] = tuple(values["isolations"])
        values["features"] = tuple(str(feature) for feature in values["features"])
        return cls(**values)


@functools.cache
def backends() -> Mapping[str, Backend]:
    """Every declared backend by name."""
    table = json.loads(resources.files("dist_testing").joinpath("backends.json").read_text(encoding="utf-8"))
    return MappingProxyType({name: Backend.from_json(entry) for name, entry in table.items()})


def backend_named(name: str) -> Backend:
    """The backend of that name.

    Raises:
        UsageError: If there is none.
    """
    table = backends()
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name, table, n=1)
    raise UsageError(
        f"Backend {name!r} is not declared.\n"
        f"Declared are {', '.join(sorted(table))}.\n"
        f"{f'Did you mean {near[0]!r}?' if near else 'Name one of them.'}"
    )
