"""The conditions of a row: on which torch, hardware and world it applies."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from dist_testing.gpus.devices import VENDORS, gpus_present, visible_gpus
from dist_testing.torch_version import COMPARISONS, torch_version

_BOUND = re.compile(rf"\s*({'|'.join(COMPARISONS)})\s*(\d+(?:\.\d+)*)\s*", re.ASCII)
# Versions are compared by so many numbers.
_NUMBERS = 4


@dataclass(frozen=True, slots=True)
class Place:
    """What a case runs on. The last three are None for a test without ranks."""

    backend: str | None = None
    world_size: int | None = None
    nodes: int | None = None


@dataclass(frozen=True, slots=True)
class Conditions:
    """On what a row applies; None for anything. `torch` is as in ">=2.14,<2.16"."""

    torch: str | None = None
    backend: str | None = None
    gpu: str | None = None
    world_size: int | None = None
    nodes: int | None = None

    def unmet(self, place: Place) -> str:
        """Return the first condition that does not hold at a place, with what was found; "" if all hold."""
        if self.torch is not None and not is_version_in(version := torch_version(), self.torch):
            return f"torch is {version}, and the row is for {self.torch}"
        for name in ("backend", "world_size", "nodes"):
            wanted, found = getattr(self, name), getattr(place, name)
            if wanted is not None and wanted != found:
                return f"{name} is {'unknown' if found is None else found}, and the row is for {wanted}"
        if self.gpu is not None and not _has_gpu(self.gpu):
            return f"this machine has no GPU {self.gpu}"
        return ""


def is_bounds(text: str) -> bool:
    """Return whether a text is a list of bounds, as in ">=2.14,<2.16"."""
    return all(map(_BOUND.fullmatch, text.split(",")))


def is_version_in(version: str, bounds: str) -> bool:
    """Return whether a version is within bounds. Suffixes, as in "2.15.0a0+cpu", do not count."""
    found = _numbers(re.match(r"[\d.]*", version)[0])  # type: ignore[index]  # it matches any text
    return all(COMPARISONS[sign](found, _numbers(bound)) for sign, bound in _BOUND.findall(bounds))


def _numbers(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in version.split(".") if part]
    return tuple((numbers + [0] * _NUMBERS)[:_NUMBERS])


@functools.cache
def _has_gpu(name: str) -> bool:
    """Return whether a GPU that this process may use has a name: its architecture, or a part of its model's name."""
    gpus = [gpu for vendor in VENDORS.values() for gpu in visible_gpus(gpus_present(vendor=vendor), vendor=vendor).gpus]
    return any(name.lower() == gpu.arch.lower() or name.lower() in gpu.model.lower() for gpu in gpus)
