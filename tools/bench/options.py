"""Options that the benches share, and their common end: print the tables."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from figures import BenchError

ROOT = Path(__file__).resolve().parents[2]

# The packages that torch.testing._internal.common_distributed imports beside torch.
_TORCH_NEEDS = ("expecttest", "hypothesis", "numpy")


def bench_parser(doc: str | None, *, quick: Sequence[str] = (), has_torch: bool = False) -> argparse.ArgumentParser:
    """Return the parser of a bench.

    Args:
        doc: The bench's docstring; its first paragraph is the description.
        quick: The options that `--quick` stands for; empty for a bench without `--quick`.
        has_torch: Whether torch's own test classes take part; `--no-torch` leaves them out.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n\n")[0], allow_abbrev=False)
    parser.set_defaults(torch=False, quick=False, quick_options=quick)
    if has_torch:
        parser.add_argument(
            "--no-torch", dest="torch", default=True, action="store_false", help="leave out torch's own classes"
        )
    if quick:
        parser.add_argument("--quick", action="store_true", help=f"only see that it works: {' '.join(quick)}")
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line of a bench.

    It ends with a usage error if torch's test classes are wanted and cannot be imported here.
    """
    options = parser.parse_args()
    if options.quick:
        options = parser.parse_args([*sys.argv[1:], *options.quick_options])
    missing = [name for name in _TORCH_NEEDS if importlib.util.find_spec(name) is None]
    if options.torch and missing:
        parser.error(f"torch's test classes need {', '.join(missing)}; install these packages, or give --no-torch")
    return options


def add_bazel(parser: argparse.ArgumentParser) -> None:
    """Add `--bazel`, the program to start."""
    parser.add_argument("--bazel", default=str(ROOT / "bazelw"), help="default: ./bazelw")


def run_bench(name: str, measure: Callable[[], str]) -> int:
    """Measure, and print the tables that `measure` returns.

    Returns:
        The exit status: 0, or 1 with the reason on stderr if nothing could be measured.
    """
    try:
        sys.stdout.write(measure())
    except BenchError as error:
        sys.stderr.write(f"{name}.py: {error}\n")
        return 1
    return 0


def count(text: str) -> int:
    """Read an option's value as a whole number from 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 1")
    return int(text)


def counts(text: str) -> tuple[int, ...]:
    """Read an option's value as several such numbers. Each counts once, in the given order."""
    return tuple(dict.fromkeys(count(part) for part in text.split(",")))


def some_of(allowed: Sequence[str], separator: str = ",") -> Callable[[str], tuple[str, ...]]:
    """Return a reader of an option's value: names of `allowed`, each of which counts once."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(text.split(separator)))
        if unknown := [name for name in names if name not in allowed]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r}: expected names of {f'{separator} '.join(allowed)}")
        return names

    return read
