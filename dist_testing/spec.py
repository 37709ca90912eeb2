"""What a target asks for: the spec that the build wrote, read and validated.

A spec is JSON in the environment of the test. Its schema has a number; this library reads its own and refuses newer
ones, because a field that it does not know could change what a test means. What is promised of GPUs is in a file, which
only targets with GPUs have: nothing else may depend on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from dist_testing.backends import Backend, backends, default_backend
from dist_testing.errors import SpecError, UsageError

__all__ = [
    "ALL_GPUS",
    "DEFAULT_WORLD_SIZE",
    "ISOLATIONS",
    "MAX_WORLD_SIZE",
    "SCHEMA",
    "SPEC_VARIABLE",
    "Spec",
    "check_isolation",
    "read_promise",
    "read_spec",
]

# Set by the build rules.
SPEC_VARIABLE = "DIST_TESTING_SPEC"
SCHEMA = 3
# Of the file with the promise.
_PROMISE_SCHEMA = 1
# Promised in the place of a number: as many as a target asks for.
ALL_GPUS = 1 << 30
# Of one case. Far above what one machine runs well; a bound so that a slip of the pen is an error.
MAX_WORLD_SIZE = 1024
# Of a test that nobody gave a size; torch's.
DEFAULT_WORLD_SIZE = 4
ISOLATIONS = ("fork", "spawn", "pool", "thread")


@dataclass(frozen=True, slots=True)
class Spec:
    """One target, for one backend.

    Attributes:
        target: Label as a user types it, `//tests:pg_wrapper_gloo`; "" outside Bazel.
        backend: The backend.
        world_sizes: Each is a parameter of every case that does not name its own; never empty.
        gpus_per_rank: GPUs that each rank needs.
        isolation: The launcher: one of `ISOLATIONS`.
        srcs: Labels of the test files.
        promised_gpus: How many GPUs the configuration says the machine has, which may be `ALL_GPUS`; None if it says
            nothing.
        text: What the spec was read from; "" outside Bazel.
        ranks_per_gpu: Ranks that share a GPU; 1 if each has its own.
        backend_names: Backends of the `dist_py_test` that the target belongs to; empty outside Bazel.
    """

    target: str
    backend: Backend
    world_sizes: tuple[int, ...]
    gpus_per_rank: int
    isolation: str = "fork"
    srcs: tuple[str, ...] = ()
    promised_gpus: int | None = None
    text: str = ""
    ranks_per_gpu: int = 1
    backend_names: tuple[str, ...] = ()

    def gpus(self, world_size: int) -> int:
        """GPUs that a world of `world_size` ranks needs."""
        return -(-world_size // self.ranks_per_gpu) * self.gpus_per_rank

    def promises(self, world_size: int) -> bool:
        """Whether the configuration says that the machine has the GPUs of such a world."""
        gpus = self.gpus(world_size)
        return self.promised_gpus is not None and 0 < gpus <= self.promised_gpus


def check_isolation(name: str, backend: Backend, isolation: str) -> None:
    """Refuse ranks that the backend cannot connect.

    Args:
        name: What asks for them.
        backend: The backend.
        isolation: The launcher.

    Raises:
        UsageError: If they do not fit.
    """
    if isolation in backend.isolations:
        return
    if isolation == "thread":
        raise UsageError(
            f'{name}: isolation "thread" with backend "{backend.name}".\n'
            "Ranks that are threads share one process: one address, one device, one environment. This backend connects "
            "processes.\n"
            f"Use a backend of threads ({', '.join(name for name, one in backends().items() if one.in_process)}), "
            f'or isolation "{backend.isolations[0]}".'
        )
    raise UsageError(
        f'{name}: isolation "{isolation}" with backend "{backend.name}".\n'
        f"Its ranks can be made by {', '.join(backend.isolations)} only.\n"
        f'Use isolation "{backend.isolations[0]}", or another backend, such as "{default_backend().name}".'
    )


def read_spec(text: str, promised_gpus: int | None = None) -> Spec:
    """Read the spec of a target.

    Args:
        text: What the build wrote.
        promised_gpus: How many GPUs the configuration says the machine has; None if it says nothing.

    Raises:
        SpecError: If it is truncated, of a newer schema, or not what the build writes.
    """
    fields = _Fields.parse(SPEC_VARIABLE, text, SCHEMA)
    fields.require("nodes", fields.number("nodes", 1) == 1, "1")
    world_sizes = fields.items("world_sizes", int)
    fields.require(
        "world_sizes",
        all(1 <= size <= MAX_WORLD_SIZE for size in world_sizes),
        f"numbers from 1 to {MAX_WORLD_SIZE}",
    )
    isolation = fields.text("isolation")
    fields.require("isolation", isolation in ISOLATIONS, f"one of {', '.join(ISOLATIONS)}")
    backend = fields.backend()
    fits = isolation in backend.isolations
    fields.require("isolation", fits, f"one of {', '.join(backend.isolations)}, with backend {backend.name}")
    gpus_per_rank = fields.number("gpus_per_rank", 0)
    ranks_per_gpu = fields.number("ranks_per_gpu", 1)
    is_possible = ranks_per_gpu == 1 or (backend.shares_gpus and gpus_per_rank == 1)
    fields.require("ranks_per_gpu", is_possible, f"1, with backend {backend.name} and {gpus_per_rank} GPU(s) per rank")
    return Spec(
        target=fields.text("target"),
        backend=backend,
        world_sizes=tuple(world_sizes),
        gpus_per_rank=gpus_per_rank,
        isolation=isolation,
        srcs=tuple(fields.items("srcs", str)),
        promised_gpus=promised_gpus,
        text=text,
        ranks_per_gpu=ranks_per_gpu,
        backend_names=tuple(fields.items("backends", str)),
    )


def read_promise(path: Path, vendor: str) -> int | None:
    """Read how many GPUs of a vendor the configuration promises; None if it promises nothing.

    Raises:
        SpecError: If the file is missing, truncated, of a newer schema, or not what the build writes.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(
            f"The promise of GPUs {path} cannot be read: {error}.\n"
            "The build writes it into the runfiles of targets with GPUs; the test was started some other way.\n"
            "Run the target with `bazel test`, or the test file with pytest."
        ) from error
    fields = _Fields.parse(str(path), text, _PROMISE_SCHEMA)
    promised = fields.content.get("promised")
    if promised is None:
        return None
    if not isinstance(promised, dict):
        fields.refuse("promised", "null, or a number of GPUs for each vendor")
    return _Fields(f"{path}, promised", promised).number(vendor, 0)


_Item = TypeVar("_Item", int, str)


@dataclass(frozen=True, slots=True)
class _Fields:
    """The fields of what the build wrote, each read with its type."""

    source: str
    content: Mapping[str, Any]

    @classmethod
    def parse(cls, source: str, text: str, schema: int) -> _Fields:
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SpecError(
                f"{source} is not JSON: {error}.\n"
                f"It has {len(text)} characters; most likely it was cut off.\n"
                "Build the target again."
            ) from error
        fields = cls(source, content if isinstance(content, dict) else {})
        found = fields.number("schema", 1)
        if found > schema:
            raise SpecError(
                f"{source} has schema {found}; this library reads schema {schema}.\n"
                "The build rules are newer than the Python package they are used with.\n"
                "Use both from one version of dist_testing."
            )
        if found < schema:
            fields.refuse("schema", str(schema))
        return fields

    def require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            self.refuse(name, expected)

    def refuse(self, name: str, expected: str) -> NoReturn:
        raise SpecError(
            f"{self.source} says {name} = {self.content.get(name)!r}; expected {expected}.\n"
            "It was not written by the build rules of this version of dist_testing.\n"
            "Build the target again; if it stays, the rules and the Python package are of two versions."
        )

    def backend(self) -> Backend:
        try:
            return Backend.from_json(self.content.get("backend"))
        except SpecError as error:
            self.refuse("backend", f"an entry of the backend table ({error})")

    def number(self, name: str, smallest: int) -> int:
        value = self.content.get(name)
        # bool is an int to isinstance.
        if not (type(value) is int and value >= smallest):
            self.refuse(name, f"a whole number from {smallest}")
        return value

    def text(self, name: str) -> str:
        value = self.content.get(name)
        if not (isinstance(value, str) and value):
            self.refuse(name, "a text")
        return value

    def items(self, name: str, kind: type[_Item]) -> list[_Item]:
        value = self.content.get(name)
        if not (isinstance(value, list) and value and all(type(item) is kind for item in value)):
            self.refuse(name, f"a list of {kind.__name__}, not empty")
        return value
