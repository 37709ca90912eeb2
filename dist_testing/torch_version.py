"""The version of the installed torch, and the signs of conditions on it."""

from __future__ import annotations

import functools
import importlib.metadata
import operator
from collections.abc import Callable

# Sign of a condition to the comparison of two versions, as tuples of numbers.
COMPARISONS: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}


@functools.cache
def torch_version() -> str:
    """Return the version, such as "2.15.0+cpu". It imports torch only if torch has no metadata."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        # Under Bazel, a torch may come without its metadata.
        import torch

        return str(torch.__version__)
