"""The versions of torch that this library is tested with; `dist_testing/versions.json` has them."""

from __future__ import annotations

import functools
import json
import re
import warnings
from importlib import resources


@functools.cache
def warn_if_untested() -> None:
    """Warn once per process if torch is older or newer than the tested versions. Nothing is switched off."""
    import torch

    version = str(torch.__version__)
    if not is_tested(version):
        oldest, newest = (".".join(map(str, end)) for end in tested_range())
        warnings.warn(
            f"torch {version}: dist_testing is tested with torch {oldest} to {newest}.\n"
            "Names and behaviour of torch's shared test library change from version to version.\n"
            "Use a version in the range, or check whether a failure comes from the version.",
            RuntimeWarning,
            stacklevel=3,
        )


def is_tested(version: str) -> bool:
    """Return whether a version, such as "2.13.0+cpu", is in the range."""
    number = re.match(r"(\d+)\.(\d+)", version)
    oldest, newest = tested_range()
    return number is not None and oldest <= (int(number[1]), int(number[2])) <= newest


@functools.cache
def tested_range() -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the oldest and the newest tested version, each as (major, minor)."""
    torch = json.loads(resources.files("dist_testing").joinpath("versions.json").read_text(encoding="utf-8"))["torch"]
    oldest, newest = ([int(part) for part in torch[end].split(".")] for end in ("oldest", "newest"))
    return (oldest[0], oldest[1]), (newest[0], newest[1])
