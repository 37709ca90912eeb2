#!/usr/bin/env python3
"""Measure watch mode: from saving an edit to the verdict, against the ordinary loop `pytest file`.

    python tools/bench/watch.py [--worlds 2,4] [--rounds 10] [--json FILE] [--quick]

Each round saves a new number into a test file, as an editor would, and takes the time until the verdict of `pytest
--dist-watch`, which was started before; then it saves one into a copy and takes the time of `python -m pytest` on it.
The two take turns, so that the machine's noise is the same for both. The file has one case, an all_reduce over gloo.
The last rows are those of the first number of ranks with a heavy conftest file: it imports torch._dynamo.

The table has the median, the fastest and the slowest round in seconds. `ratio` is watch mode over the ordinary loop, of
medians and of minima. `first run` is the time from the start of the watch to its first verdict.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from figures import BenchError, machine_facts, ratio, ratio_lines, summarise, table
from options import ROOT, bench_parser, count, counts, parse, run_bench

_SOURCE = Path(__file__).resolve().parent / "loop" / "test_edited.py"
_EDIT = re.compile(r"^EDIT = \d+$", re.MULTILINE)
_VERDICT = "watch: 1 passed in "
_WAITS = "watch: waiting for a save"
_OPTIONS = ("-p", "dist_testing.core.pytest.plugin", "-p", "no:cacheprovider", "-q")
_HEAVY = "import torch._dynamo\n"
_WATCH, _ORDINARY = "watch mode", "pytest file"
_QUICK = ("--worlds=2", "--rounds=1")


def _command(world_size: int, *more: str) -> list[str]:
    return [sys.executable, "-m", "pytest", *_OPTIONS, f"--dist-world-size={world_size}", *more, _SOURCE.name]


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), *(entry for entry in sys.path if entry)])
    return {**os.environ, "PYTHONPATH": path}


def _save(folder: Path, number: int) -> None:
    file = folder / _SOURCE.name
    text, edits = _EDIT.subn(f"EDIT = {number}", _SOURCE.read_text(encoding="utf-8"))
    if edits != 1:
        raise BenchError(f"{_SOURCE} has {edits} lines `EDIT = <number>`; one is needed.")
    file.write_text(text, encoding="utf-8")


def _read_until(output: IO[str], text: str) -> None:
    shown: list[str] = []
    for line in output:
        shown.append(line)
        if text in line:
            return
    raise BenchError(f"the watch ended before it said {text!r}:\n{''.join(shown)}")


@contextlib.contextmanager
def _watching(folder: Path, world_size: int) -> Iterator[tuple[IO[str], float]]:
    """Watch the file of a folder; yield the output, and the seconds to the first verdict."""
    start_s = time.monotonic()
    process = subprocess.Popen(
        _command(world_size, "--dist-watch"),
        cwd=folder,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        _read_until(process.stdout, _VERDICT)
        first_s = time.monotonic() - start_s
        _read_until(process.stdout, _WAITS)
        yield process.stdout, first_s
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def _run_ordinary(folder: Path, world_size: int) -> None:
    done = subprocess.run(
        _command(world_size),
        cwd=folder,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BenchError(f"pytest ended with {done.returncode}:\n{done.stdout}")


def _measure(world_size: int, rounds: int, conftest: str) -> tuple[dict[str, list[float]], float]:
    """Return the seconds of each round, and those of the first run of the watch."""
    seconds: dict[str, list[float]] = {_WATCH: [], _ORDINARY: []}
    with contextlib.ExitStack() as stack:
        watched, plain = (Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2))
        for folder in (watched, plain):
            (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
            (folder / "conftest.py").write_text(conftest, encoding="utf-8")
            _save(folder, 0)
        output, first_s = stack.enter_context(_watching(watched, world_size))
        for number in range(1, rounds + 1):
            start_s = time.monotonic()
            _save(watched, number)
            _read_until(output, _VERDICT)
            seconds[_WATCH].append(time.monotonic() - start_s)
            _read_until(output, _WAITS)
            start_s = time.monotonic()
            _save(plain, number)
            _run_ordinary(plain, world_size)
            seconds[_ORDINARY].append(time.monotonic() - start_s)
    return seconds, first_s


def _report(worlds: Sequence[int], rounds: int) -> tuple[str, dict[str, Any]]:
    rows, ratios, firsts, figures = [], {}, {}, {}
    cases = [*((size, f"{size} ranks", "") for size in worlds), (worlds[0], f"{worlds[0]} ranks, heavy", _HEAVY)]
    for size, case, conftest in cases:
        seconds, firsts[case] = _measure(size, rounds, conftest)
        found = {name: summarise(values) for name, values in seconds.items()}
        rows += [[f"{name}, {case}", *(f"{value:.2f}" for value in one.figures)] for name, one in found.items()]
        ratios[f"ratio, {case}"] = ratio(found[_WATCH], found[_ORDINARY])
        figures[case] = seconds
    text = table(["save to verdict, s", "median", "min", "max"], rows) + ratio_lines(ratios)
    text += "".join(f"first run, {case}: {first_s:.2f} s\n" for case, first_s in firsts.items())
    return text, {"seconds": figures, "ratios": ratios, "first_s": firsts, "machine": machine_facts(), "rounds": rounds}


def main() -> int:
    """Measure and print."""
    parser = bench_parser(__doc__, quick=_QUICK)
    parser.add_argument("--worlds", type=counts, default=(2, 4), help="world sizes, default 2,4")
    parser.add_argument("--rounds", type=count, default=10, help="edits of each, default 10")
    options = parse(parser)
    return run_bench("watch", options.json, lambda: _report(options.worlds, options.rounds))


if __name__ == "__main__":
    sys.exit(main())
