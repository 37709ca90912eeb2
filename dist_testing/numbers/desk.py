"""Takes the numbers of the ranks of one world, keeps them in the record of the case, and judges them at its end.

Later numbers are compared with those in the file of `--dist-numbers`. `numbers.schema.json` describes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import statistics
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dist_testing.core.engine.hooks import CaseStart, WorldWatcher
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.codec import WrongValueError, shape_of
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.outcomes import Cause, Status, Verdict
from dist_testing.core.ground.record import case_name
from dist_testing.core.ground.spec import Spec
from dist_testing.core.ground.whole_file import whole_file
from dist_testing.numbers.number import NAME, NUMBERS, PROPERTY, Better, Number, Summary

SCHEMA_FILE = Path(__file__).with_name("numbers.schema.json")
COMPARE, UPDATE = "--dist-numbers", "--dist-numbers-update"
_SCHEMA = 1
# A test that records in a loop without end must not fill the record. Names of a case.
_MAX_NAMES = 200


class Kind(NamedTuple):
    """Whose numbers can be compared: those of a case on one backend, at one world size."""

    case: str
    backend: str
    world_size: int


class Key(NamedTuple):
    """What a base is the base of: a number of such a case on one model of GPU or CPU."""

    kind: Kind
    hardware: str
    name: str


@dataclass(frozen=True, slots=True)
class Base:
    """One number in the file: the worst one of the ranks; for `better` = "same", the middle one."""

    case: str
    name: str
    backend: str
    world_size: int
    hardware: str
    value: float
    unit: str
    better: Better

    @property
    def key(self) -> Key:
        """What it is the base of."""
        return Key(Kind(self.case, self.backend, self.world_size), self.hardware, self.name)


@dataclass(frozen=True, slots=True)
class _Content:
    schema: int
    numbers: tuple[Base, ...]


_CONTENT = shape_of(_Content)


@dataclass(frozen=True, slots=True)
class Bases:
    """What the command line asks for: the setting of the add-on."""

    text: str  # the file, as the user has written it
    path: Path
    is_update: bool  # whether to write the numbers there, and compare nothing
    backend: str  # name of the run's backend
    known: Mapping[Key, Base]  # the numbers in the file

    def __str__(self) -> str:
        return self.text


def from_options(spec: Spec, given: Mapping[str, str]) -> Bases:
    """Return what the command line asks for."""
    if len(given) > 1:
        raise UsageError(
            f"{COMPARE}={given[COMPARE]} with {UPDATE}={given[UPDATE]}.\n"
            "A run either compares its numbers with those of a file, or writes them there.\n"
            "Leave one of the two out."
        )
    ((option, text),) = given.items()
    path = Path(text)
    # A link, such as a runfile of Bazel, stays: its file is replaced.
    real = Path(os.path.realpath(path))
    is_update = option == UPDATE
    if is_update and not os.access(real.parent, os.W_OK | os.X_OK):
        raise UsageError(
            f"{option}={path}: no file can be written in {real.parent}.\n"
            "The folder does not exist, or this user may not write there.\n"
            "Make the folder, or name another file."
        )
    # Later changes of the directory by a test must not change the file.
    known = {} if is_update and not path.exists() else read_bases(path, option)
    return Bases(text, real, is_update, spec.backend.name, known)


def read_bases(path: Path, option: str) -> dict[Key, Base]:
    """Read a file of numbers. A wrong one is a UsageError, which names the option."""
    try:
        content: _Content = _CONTENT.read(json.loads(path.read_bytes()))
        if content.schema != _SCHEMA:
            raise WrongValueError(f"its schema is {content.schema}; this version of dist_testing reads {_SCHEMA}")
    except (OSError, WrongValueError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{option}={path}: it is no file of numbers: {str(error).splitlines()[0]}.\n"
            "The file does not exist, was changed by hand, or has other content.\n"
            f"Write {UPDATE}=numbers.json to make one, or repair it by version control."
        ) from None
    known: dict[Key, Base] = {}
    for base in content.numbers:
        if known.setdefault(base.key, base) is not base:
            raise UsageError(
                f"{option}={path}: {base.name!r} of {base.case} on {base.hardware!r} is there twice.\n"
                "A merge has kept two values, and only one can be the base.\n"
                "Remove one of them."
            )
    return known


def replace_bases(path: Path, kind: Kind, hardware: Collection[str], new: Collection[Base]) -> None:
    """Replace the numbers of a kind of case on some hardware. Those of other names are removed on all hardware.

    All others in the file stay.
    Other processes may do the same for other cases at the same time. A reader sees the old file or the new one.
    """
    with _locked(path.parent):
        known = read_bases(path, UPDATE) if path.exists() else {}
        names = {base.name for base in new}
        kept = [
            base
            for key, base in known.items()
            if key.kind != kind or (key.hardware not in hardware and key.name in names)
        ]
        # In this order a change of one number is a change of one place.
        numbers = sorted([*kept, *new], key=lambda base: base.key)
        content = {"schema": _SCHEMA, "numbers": list(map(dataclasses.asdict, numbers))}
        with whole_file(path) as file:
            file.write(f"{json.dumps(content, indent=1)}\n".encode())


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder: a lock on the file would stay with the replaced one."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class NumberDesk(WorldWatcher):
    """Keeps and judges the numbers of the cases of one world."""

    def begin_case(self, start: CaseStart) -> None:
        """Forget the numbers of the last case."""
        self._bases: Bases | None = start.case.settings.get(NAME)
        backend = self._bases.backend if self._bases else ""
        self._kind = Kind(case_name(start.case.name), backend, start.case.world_size)
        # By name, then by rank.
        self._numbers: dict[str, dict[int, Number]] = {}

    def on_message(self, rank: int, payload: str) -> None:
        """Keep a number, or refuse it."""
        number = NUMBERS.from_wire(payload)
        refusal = self._refusal(rank, number)
        if not refusal:
            self._numbers.setdefault(number.name, {})[rank] = number
        self._world.records[rank].answer(NAME, refusal)

    def _refusal(self, rank: int, number: Number) -> str:
        of_ranks = self._numbers.get(number.name, {})
        if rank in of_ranks:
            return _text("recorded before", "A rank has one number of each name in a case.", "Use another name.")
        if not of_ranks and len(self._numbers) >= _MAX_NAMES:
            most = f"one of more than {_MAX_NAMES} names"
            return _text(most, "The record of a case has room for so many.", "Record fewer numbers.")
        for other, told in of_ranks.items():
            if _terms(told) != _terms(number):
                return _text(
                    f"{_terms(number)}; rank {other} has {_terms(told)}",
                    "The numbers of all ranks are compared with one base.",
                    "Use the same arguments on all ranks.",
                )
        return self._no_base(number) if number.within is not None else ""

    def _no_base(self, number: Number) -> str:
        """Return why a number cannot be compared; "" if it can, or if this run writes the bases."""
        if self._bases is None:
            return _text(
                f"within = {number.within}, and no base",
                f"The run has no {COMPARE}.",
                f"{UPDATE}=numbers.json writes the numbers of this run; {COMPARE}=numbers.json compares with them.",
            )
        if self._bases.is_update:
            return ""
        base = self._bases.known.get(Key(self._kind, number.hardware, number.name))
        if base is None:
            return _text(
                f"no base in {self._bases}",
                f"It has none for this case on {self._kind.backend}, {number.hardware!r}, world size "
                f"{self._kind.world_size}.",
                f"Add it: run the case with {UPDATE}={self._bases}, and check the file in.",
            )
        if (base.unit, base.better) != (number.unit, number.better):
            return _text(
                f"unit {number.unit!r}, better {number.better!r}; the base has {base.unit!r}, {base.better!r}",
                "The test was changed after the base was written, so the two numbers mean different things.",
                f"Change the test back, or write the base again: {UPDATE}={self._bases}.",
            )
        return ""

    def explain(self, result: CaseResult) -> CaseResult:
        """Put the numbers into the result, and judge them; with `--dist-numbers-update`, write those of a pass."""
        facts = {f"{PROPERTY}{name}": self._fact(of_ranks) for name, of_ranks in self._numbers.items()}
        result = dataclasses.replace(result, facts={**result.facts, **facts})
        if self._bases is None:
            return result
        if self._bases.is_update:
            if result.verdict.status is Status.PASSED:
                self._write(self._bases)
            return result
        wrong = [*self._worse()]
        if result.verdict.status is Status.PASSED and (wrong := [*wrong, *self._missing(self._bases)]):
            found = Verdict(Status.FAILED, Cause.FAILURE, "; ".join(wrong))
            way_out = f"If the change is meant, {UPDATE}={self._bases} writes the new numbers."
            return dataclasses.replace(result, verdict=found, notes=(*result.notes, way_out))
        return dataclasses.replace(result, notes=(*result.notes, *wrong))

    def _base(self, number: Number) -> Base | None:
        """Return the base of a number, if it has one of the same unit."""
        known = self._bases.known if self._bases and not self._bases.is_update else {}
        base = known.get(Key(self._kind, number.hardware, number.name))
        return base if base and (base.unit, base.better) == (number.unit, number.better) else None

    def _worse(self) -> Iterator[str]:
        """Yield a sentence on each number that is worse than its base, of the rank where it is so the most."""
        for name, of_ranks in self._numbers.items():
            found = [
                (worse, rank, number, base)
                for rank, number in of_ranks.items()
                if number.within is not None
                and (base := self._base(number)) is not None
                and (worse := _worse_by(number, base)) > number.within * abs(base.value)
            ]
            if found:
                worse, rank, number, base = max(found, key=lambda one: one[0])
                part = f" by {worse / abs(base.value):.1%}" if base.value else ""
                unit = f" {number.unit}" if number.unit else ""
                least, middle, most = _spread(of_ranks)
                yield (
                    f"{name} = {number.value:g}{unit} on rank {rank} is worse than the base "
                    f"{base.value:g}{part}, and not within {number.within:.1%} ({len(found)} of {len(of_ranks)} ranks "
                    f"are worse; min {least:g}, median {middle:g}, max {most:g})"
                )

    def _missing(self, bases: Bases) -> Iterator[str]:
        """Yield a sentence on each number that has a base, and that no rank has recorded."""
        for name in dict.fromkeys(key.name for key in bases.known if key.kind == self._kind):
            if name not in self._numbers:
                yield f"no rank has recorded {name}, which has a base in {bases}"

    def _write(self, bases: Bases) -> None:
        new: dict[Key, list[Number]] = {}
        for of_ranks in self._numbers.values():
            for number in of_ranks.values():
                new.setdefault(Key(self._kind, number.hardware, number.name), []).append(number)
        replace_bases(
            bases.path,
            self._kind,
            {key.hardware for key in new},
            [
                Base(
                    **self._kind._asdict(),
                    name=key.name,
                    hardware=key.hardware,
                    value=_worst([number.value for number in numbers], numbers[0]),
                    unit=numbers[0].unit,
                    better=numbers[0].better,
                )
                for key, numbers in new.items()
            ],
        )

    def _fact(self, of_ranks: Mapping[int, Number]) -> str:
        first = of_ranks[min(of_ranks)]
        base = self._base(first)
        values = {str(rank): of_ranks[rank].value for rank in sorted(of_ranks)}
        spread = _spread(of_ranks)
        write = shape_of(Summary).write
        assert write is not None
        return json.dumps(
            write(Summary(first.unit, first.better, *spread, values, base.value if base else None, first.within))
        )


def _spread(of_ranks: Mapping[int, Number]) -> tuple[float, float, float]:
    values = [number.value for number in of_ranks.values()]
    return min(values), statistics.median(values), max(values)


def _worst(values: list[float], number: Number) -> float:
    if number.better == "same":
        return statistics.median_low(values)
    return min(values) if number.better == "higher" else max(values)


def _worse_by(number: Number, base: Base) -> float:
    """Return by how much a number is worse than its base; negative if it is better."""
    more = number.value - base.value
    return {"higher": -more, "lower": more, "same": abs(more)}[number.better]


def _terms(number: Number) -> str:
    return f"unit {number.unit!r}, better {number.better!r}, within {number.within}"


def _text(what: str, cause: str, way_out: str) -> str:
    return f"{what}.\n{cause}\n{way_out}"
