#!/usr/bin/env python3
"""Run every kind of hang with every way to make ranks, and print what the library says of it.

    PYTHONPATH=. python tools/bench/hangs.py [--kinds "early return;other tag"] [--isolations "fork;pool"] [--quick]

A column for each isolation: `proven` or `deadline`, the rank that is blamed (`-` where no single rank is), and the
seconds from the moment when the last rank began its test to the verdict, with stacks taken and all ranks stopped. The
limit of each case is 300 s; where the hang cannot be proven, it is 8 s, and the lines below the table say why. A cell
with `!` is not what it should be; then the exit status is 1.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from figures import BenchError, table
from options import bench_parser, parse, run_bench, some_of

from tests.support.hang_kinds import KINDS
from tests.support.hang_runs import ISOLATIONS, SHORT_LIMIT_S, Told, complaint, run_kinds

_Results = Mapping[str, Mapping[str, Told]]


def cell(name: str, isolation: str, told: Told | None) -> str:
    """Return what one isolation has said of one kind."""
    wrong = "! " if complaint(KINDS[name], isolation, told) else ""
    if told is None:
        return f"{wrong}-"
    how = "deadline" if KINDS[name].why_not and told.after_s > SHORT_LIMIT_S / 2 else "proven"
    blamed = "-" if told.culprit is None else str(told.culprit)
    return f"{wrong}{how} {blamed} {told.after_s:.2f}"


def report(results: _Results, names: Sequence[str]) -> str:
    """Return the table, what is wrong in it, and the reasons of hangs that are not proven."""
    rows = [[name, *(cell(name, isolation, results[isolation].get(name)) for isolation in results)] for name in names]
    lines = [table(["kind of hang", *results], rows)]
    lines += [f"{isolation}, {name}: {text}\n" for isolation, name, text in complaints(results, names)]
    lines += [f"not proven, {name}: {KINDS[name].why_not}\n" for name in names if KINDS[name].why_not]
    lines += [f"left out with {how}, {name}: {why}\n" for name in names for how, why in KINDS[name].otherwise.items()]
    return "".join(lines)


def complaints(results: _Results, names: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return isolation, name of the kind, and what is wrong."""
    return [
        (isolation, name, text)
        for isolation, told in results.items()
        for name in names
        if (text := complaint(KINDS[name], isolation, told.get(name)))
    ]


def main() -> int:
    """Run and print."""
    kinds = tuple(KINDS)
    parser = bench_parser(__doc__, quick=("--kinds=early return", "--isolations=fork"))
    # A name may hold a comma.
    parser.add_argument("--kinds", type=some_of(kinds, ";"), default=kinds, help="names, with semicolons; default all")
    parser.add_argument("--isolations", type=some_of(ISOLATIONS, ";"), default=ISOLATIONS, help="the same")
    parser.add_argument("--keep", metavar="FOLDER", help="keep the events and the output here")
    options = parse(parser)
    wrong: list[tuple[str, str, str]] = []

    def measure() -> str:
        results = {}
        for isolation in options.isolations:
            sys.stderr.write(f"{isolation} ...\n")
            folder = Path(options.keep or temporary) / isolation
            results[isolation] = run_kinds(options.kinds, isolation, folder)
            if not results[isolation]:
                output = (folder / "output.txt").read_text(encoding="utf-8", errors="replace")
                raise BenchError(f"{isolation}: no case was judged:\n{output}")
        wrong.extend(complaints(results, options.kinds))
        return report(results, options.kinds)

    with tempfile.TemporaryDirectory(prefix="dist-bench-") as temporary:
        return run_bench("hangs", measure) or (1 if wrong else 0)


if __name__ == "__main__":
    sys.exit(main())
