"""A number that a rank has recorded, as it travels to the runner."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from dist_testing.core.ground.codec import Family

# The add-on, and so the attribute of a world.
NAME = "record"
# Which numbers are good: higher ones, lower ones, or only those that equal the base.
Better = Literal["higher", "lower", "same"]
BETTER: tuple[Better, ...] = ("higher", "lower", "same")

# Limits of the texts, in characters: they are in files, in XML and on pages.
_MAX_NAME_CHARS = 100
_MAX_UNIT_CHARS = 30
MAX_HARDWARE_CHARS = 200


@dataclass(frozen=True, slots=True)
class Number:
    """A number of one rank."""

    name: str  # what was measured
    value: float
    unit: str  # such as "GB/s"; "" for none
    better: Better  # which numbers are good
    within: float | None  # the part of the base by which it may be worse; None if it is not compared
    hardware: str  # the model of the rank's GPU, or of the CPU

    def __post_init__(self) -> None:
        for what, text, least, most in (
            ("name", self.name, 1, _MAX_NAME_CHARS),
            ("unit", self.unit, 0, _MAX_UNIT_CHARS),
            ("hardware", self.hardware, 1, MAX_HARDWARE_CHARS),
        ):
            if not least <= len(text) <= most or not text.isprintable():
                raise ValueError(f"{what} = {text[:most]!r}; expected {least} to {most} printable characters")
        if not math.isfinite(self.value):
            raise ValueError(f"value = {self.value}; expected a finite number")
        if self.within is not None and not 0 <= self.within < math.inf:
            raise ValueError(f"within = {self.within}; expected a part of the base from 0, such as 0.1")


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers of one name in a case, of all ranks that recorded it: the value of its property, as JSON."""

    is_open: ClassVar[bool] = True

    unit: str
    better: Better  # which numbers are good
    min: float  # the least of the ranks
    median: float  # the middle one
    max: float  # the largest
    ranks: dict[str, float]  # rank to its number
    base: float | None = None  # the number in the file; None if it has none for the lowest of these ranks
    within: float | None = None  # the part of the base by which a number may be worse; None if they are not compared


# Prefix of the name of that property.
PROPERTY = "number."

NUMBERS: Family[Number] = Family("number of a rank", 1, (Number,))
