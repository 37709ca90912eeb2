"""Options that the benches share, and their common end: print the tables."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import time
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
        quick: The options that `--quick` stands for; empty for a bench without `--quick`, or with one of its own.
        has_torch: Whether torch's own test classes take part; `--no-torch` leaves them out.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n\n")[0], allow_abbrev=False)
    if has_torch:
        parser.add_argument("--no-torch", dest="torch", action="store_false", help="leave out torch's own classes")
    else:
        parser.set_defaults(torch=False)
    if quick:
        parser.add_argument("--quick", action="store_true", help=f"only see that it works: {' '.join(quick)}")
        parser.set_defaults(quick_options=quick)
    return parser


def add_bazel(parser: argparse.ArgumentParser) -> None:
    """Add `--bazel`, the program to start."""
    parser.add_argument("--bazel", default=str(ROOT / "bazelw"), help="default: ./bazelw")


def call_bazel(program: str, *arguments: str, workspace: Path = ROOT) -> tuple[float, int, str]:
    """Run a command of Bazel in a workspace; return its seconds, its exit status and its output."""
    start = time.monotonic()
    done = subprocess.run(
        [program, *arguments], cwd=workspace, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return time.monotonic() - start, done.returncode, done.stdout


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line of a bench with `quick` options.

    It ends with a usage error if torch's test classes are wanted and cannot be imported here.
    """
    options = parser.parse_args()
    if options.quick:
        options = parser.parse_args([*sys.argv[1:], *options.quick_options])
    missing = [name for name in _TORCH_NEEDS if importlib.util.find_spec(name) is None]
    if options.torch and missing:
        parser.error(f"torch's test classes need {', '.join(missing)}; install these packages, or give --no-torch")
    return options


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
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 1")
    return value


def counts(text: str) -> tuple[int, ...]:
    """Read an option's value as several such numbers. Each counts once, in the given order."""
    return tuple(dict.fromkeys(count(part) for part in text.split(",")))
