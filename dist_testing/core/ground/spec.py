"""Reads and validates the spec of a target, which the build rules write.

A spec is JSON in the environment of the test. Its schema has a number; this library reads its own schema and refuses
newer ones, because an unknown field could change the meaning of a test. The promise of GPUs is in a separate file that
only targets with GPUs have, so that no other target depends on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

from dist_testing.core.ground.backends import Backend
from dist_testing.core.ground.codec import WrongValueError, shape_of
from dist_testing.core.ground.errors import SpecError, UsageError
from dist_testing.core.ground.layout import MAX_NODES

# Name of the environment variable with the spec; the build rules set it.
SPEC_VARIABLE = "DIST_TESTING_SPEC"
SCHEMA = 5
# Schema of the file with the promise.
_PROMISE_SCHEMA = 1
# Promise value: as many GPUs as the target asks for.
ALL_GPUS = 1 << 30
# The largest world of a case. Far above what one machine runs well: the bound turns a typing error into a text.
MAX_WORLD_SIZE = 1024
# Ranks of a test that states no size; torch's default.
DEFAULT_WORLD_SIZE = 4

_Count = Annotated[int, range(1 << 31)]
_Rank = Annotated[int, range(MAX_WORLD_SIZE)]
_Exit = Annotated[int, range(-64, 256)]


@dataclass(frozen=True, slots=True)
class Spec:
    """What one target asks for, for one backend.

    Attributes:
        target: Label as a user types it, such as `//tests:pg_wrapper_gloo`; "" outside Bazel.
        backend: The backend.
        world_sizes: Numbers of ranks, never empty. A case that names no world size runs once with each.
        gpus_per_rank: Number of GPUs that each rank needs, from 0.
        isolation: Name of the isolation (`core.launch.isolation`).
        srcs: Labels of the test files.
        promised_gpus: Number of GPUs that the configuration promises, which may be `ALL_GPUS`; None without a promise.
        text: The JSON text of the spec; "" outside Bazel.
        ranks_per_gpu: Number of ranks that share a GPU; 1 if each has its own.
        gpu_archs: Architectures of GPUs that the ranks can use, such as "sm_90"; empty for any.
        backend_names: Backends of the `dist_py_test` that the target belongs to; empty outside Bazel.
        nodes: Nodes that the ranks of a case are spread over if it names no number.
        program_exits: For a target that runs a program, pairs of a rank and how its process must end, as in
            `subprocess`; None for a target with tests.
    """

    target: str
    backend: Backend
    world_sizes: tuple[int, ...]
    gpus_per_rank: int
    isolation: str
    srcs: tuple[str, ...] = ()
    promised_gpus: int | None = None
    text: str = ""
    ranks_per_gpu: int = 1
    gpu_archs: tuple[str, ...] = ()
    backend_names: tuple[str, ...] = ()
    nodes: int = 1
    program_exits: tuple[tuple[int, int], ...] | None = None

    def gpus(self, world_size: int) -> int:
        """Return the number of GPUs that a world of `world_size` ranks needs."""
        return -(-world_size // self.ranks_per_gpu) * self.gpus_per_rank

    def promises(self, world_size: int) -> bool:
        """Return whether the configuration promises the GPUs of a world of `world_size` ranks; False for no GPUs."""
        gpus = self.gpus(world_size)
        return self.promised_gpus is not None and 0 < gpus <= self.promised_gpus


def is_world_size(value: object) -> bool:
    """Return whether `value` is a possible number of ranks: an int from 1 to MAX_WORLD_SIZE, and not a bool."""
    return type(value) is int and 1 <= value <= MAX_WORLD_SIZE


def check_world_size(subject: str, value: object, way_out: str) -> int:
    """Return `value`, if it is a possible number of ranks.

    Raises:
        UsageError: If it is not. Its text begins with `subject`, such as the name of the case, and ends with `way_out`.
    """
    if not is_world_size(value):
        raise UsageError(
            f"{subject}: world_size = {value!r}; expected a number of ranks from 1 to {MAX_WORLD_SIZE}.\n"
            "A world has at least one rank, and no machine runs more than that.\n"
            f"{way_out}"
        )
    assert isinstance(value, int)
    return value


def program_of(target: str) -> str:
    """Return the program of a built target, as a person starts it in the root of the workspace.

    Args:
        target: The label: `//package:name`, after the canonical name of another repository.
    """
    repository, _, path = target.lstrip("@").partition("//")
    parts = ["bazel-bin", *(["external", repository] if repository else []), *path.split(":")]
    return "/".join(part for part in parts if part)


def read_spec(text: str, promised_gpus: int | None = None) -> Spec:
    """Read the spec of a target from the JSON text that the build rules wrote.

    `promised_gpus` is the number of GPUs that the configuration promises; None without a promise.

    Raises:
        SpecError: If the text is truncated, has another schema, or has a field that the build rules do not write so.
    """
    fields = _Fields.parse(SPEC_VARIABLE, text, SCHEMA)
    world_sizes = fields.read("world_sizes", tuple[Annotated[int, range(1, MAX_WORLD_SIZE + 1)], ...])
    backend = fields.backend()
    gpus_per_rank = fields.read("gpus_per_rank", _Count)
    ranks_per_gpu = fields.read("ranks_per_gpu", Annotated[int, range(1, MAX_WORLD_SIZE + 1)])
    if ranks_per_gpu > 1 and not (backend.shares_gpus and gpus_per_rank == 1):
        fields.refuse("ranks_per_gpu", f"1, with backend {backend.name} and {gpus_per_rank} GPU(s) per rank")
    return Spec(
        target=fields.read("target", str),
        nodes=fields.read("nodes", Annotated[int, range(1, MAX_NODES + 1)]),
        backend=backend,
        world_sizes=world_sizes,
        gpus_per_rank=gpus_per_rank,
        isolation=fields.read("isolation", str),
        srcs=fields.read("srcs", tuple[str, ...]),
        promised_gpus=promised_gpus,
        text=text,
        ranks_per_gpu=ranks_per_gpu,
        gpu_archs=fields.read("gpu_archs", tuple[str, ...], may_be_empty=True),
        backend_names=fields.read("backends", tuple[str, ...]),
        program_exits=fields.read("program_exits", tuple[tuple[_Rank, _Exit], ...] | None, may_be_empty=True),
    )


def read_promise(path: Path, vendor: str) -> int | None:
    """Read how many GPUs of a vendor, such as "nvidia", the configuration promises.

    Returns:
        The number of GPUs, which may be `ALL_GPUS`; None if the configuration promises nothing.

    Raises:
        SpecError: If the file is missing or truncated, has another schema, or has a field that the build rules do not
            write so.
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
    count: int = _Fields(f"{path}, promised", promised).read(vendor, _Count)
    return count


@dataclass(frozen=True, slots=True)
class _Fields:
    """Reads the fields of a JSON object that the build rules wrote; checks the type of each. Errors name `source`."""

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
        found = fields.read("schema", Annotated[int, range(1, 1 << 31)])
        if found > schema:
            raise SpecError(
                f"{source} has schema {found}; this library reads schema {schema}.\n"
                "The build rules are newer than the Python package they are used with.\n"
                "Use both from one version of dist_testing."
            )
        if found < schema:
            fields.refuse("schema", str(schema))
        return fields

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

    def read(self, name: str, annotation: Any, *, may_be_empty: bool = False) -> Any:
        """Return a field that fits an annotation (`core.ground.codec`), and is not empty unless it may be."""
        value = self.content.get(name)
        shape = shape_of(annotation)
        if value in ("", []) and not may_be_empty:
            self.refuse(name, f"{shape.expected}, not empty")
        try:
            return shape.read(value)
        except WrongValueError:
            self.refuse(name, shape.expected)
