"""A module beside the program that imports it."""

from __future__ import annotations


def steps(option: str) -> range:
    """Return the numbers of the steps that `--steps=3` asks for."""
    return range(int(option.removeprefix("--steps=")))
