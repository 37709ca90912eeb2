"""The file of `--dist-numbers`: the numbers that later ones are compared with. `numbers.schema.json` describes it."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dist_testing.core.ground.codec import WrongValueError, shape_of
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.spec import Spec
from dist_testing.core.ground.whole_file import whole_file
from dist_testing.numbers.number import Better

SCHEMA_FILE = Path(__file__).with_name("numbers.schema.json")
COMPARE, UPDATE = "--dist-numbers", "--dist-numbers-update"
_SCHEMA = 1


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
    is_update = option == UPDATE
    if is_update and not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(
            f"{option}={path}: no file can be written in {path.absolute().parent}.\n"
            "The folder does not exist, or this user may not write there.\n"
            "Make the folder, or name another file."
        )
    # Later changes of the directory by a test must not change the file.
    known = {} if is_update and not path.exists() else read_bases(path, option)
    return Bases(text, path.absolute(), is_update, spec.backend.name, known)


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
