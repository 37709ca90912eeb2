"""Options that the benches share."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

__all__ = ["add_common", "count", "counts", "require_torch_needs"]

# What torch.testing._internal.common_distributed imports beside torch.
_TORCH_NEEDS = ("expecttest", "hypothesis", "numpy")


def add_common(parser: argparse.ArgumentParser, *, quick: str) -> None:
    """Add `--no-torch`, `--quick` and `--json`.

    Args:
        parser: The bench's.
        quick: The options that `--quick` stands for.
    """
    parser.add_argument("--no-torch", dest="torch", action="store_false", help="leave out torch's own classes")
    parser.add_argument("--quick", action="store_true", help=f"only see that it works: {quick}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every figure to this file")


def require_torch_needs(parser: argparse.ArgumentParser) -> None:
    """End with a usage error if torch's test classes cannot be imported here."""
    if missing := [name for name in _TORCH_NEEDS if importlib.util.find_spec(name) is None]:
        parser.error(f"torch's test classes need {', '.join(missing)}; install what is missing, or give --no-torch")


def count(text: str) -> int:
    """The type of an option that is a number of something."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 1")
    return value


def counts(text: str) -> tuple[int, ...]:
    """The type of an option that is several of them, each once, in the order given."""
    return tuple(dict.fromkeys(count(part) for part in text.split(",")))
