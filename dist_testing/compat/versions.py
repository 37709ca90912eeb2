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
        warnings.warn(
            f"torch {version}: dist_testing is tested with torch {' to '.join(_tested_range())}.\n"
            "Names and behaviour of torch's shared test library change from version to version.\n"
            "Use a version in the range, or check whether a failure comes from the version.",
            RuntimeWarning,
            stacklevel=3,
        )


def is_tested(version: str) -> bool:
    """Return whether a version, such as "2.13.0+cpu", is in the range."""
    oldest, newest = map(_number, _tested_range())
    return oldest <= _number(version) <= newest


def _number(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:2]]


def _tested_range() -> tuple[str, str]:
    torch = json.loads(resources.files("dist_testing").joinpath("versions.json").read_text(encoding="utf-8"))["torch"]
    return torch["oldest"], torch["newest"]
