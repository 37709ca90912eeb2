"""The versions of torch that this library is tested with."""

from __future__ import annotations

import functools
import re
import warnings

__all__ = ["NEWEST", "OLDEST", "warn_if_untested"]

# (major, minor) of the oldest and of the newest tested version.
OLDEST = (2, 10)
NEWEST = (2, 13)


@functools.cache
def warn_if_untested() -> None:
    """Warn once per process if torch is older or newer than the tested versions. Nothing is switched off."""
    import torch

    version = str(torch.__version__)
    if not is_tested(version):
        oldest, newest = (".".join(map(str, end)) for end in (OLDEST, NEWEST))
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
    return number is not None and OLDEST <= (int(number[1]), int(number[2])) <= NEWEST
