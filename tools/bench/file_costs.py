"""What a case costs in files of few and of many cases, with both front ends: `launch.py --files`.

A file's cost is all that its process does after the imports, its end included, divided by its cases. So the first case,
which starts the fork server, and the copies into huge pages count. CPU seconds are those of all processes of the
contestant, and other work on the machine changes them little. The contestants take turns case by case.

The raw forks destroy their group. The library's front ends leave gloo's to the end of the process, which saves 20 to
45 ms of a case; a unittest class whose test destroys it by itself costs about 1.1 times a raw fork.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contest import Contestant, Run, contest, pytest_command
from figures import BenchError, machine_facts, paired_ratio, ratio_lines, table

RAW = (
    Contestant("raw fork, TCPStore", ("-m", "contestants.raw_fork", "tcp")),
    Contestant("raw fork, FileStore", ("-m", "contestants.raw_fork", "file")),
)
_CONTESTANTS = (
    *RAW,
    Contestant("pytest marker", pytest_command("test_trivial.py", "--dist-isolation=fork")),
    Contestant("unittest class", ("-m", "contestants.library_process")),
)


@dataclass(frozen=True, slots=True)
class _Costs:
    """What one case of a file has cost, in milliseconds, for each repetition of the file."""

    wall_ms: tuple[float, ...]
    cpu_ms: tuple[float, ...]


def report(files: Sequence[int], worlds: Sequence[int], repeats: int) -> tuple[str, dict[str, Any]]:
    """Measure, and return the tables and the figures.

    Raises:
        BenchError: If a case does not pass.
    """
    text, found = "", {}
    for size in worlds:
        for cases in files:
            costs = _measure(cases, world_size=size, repeats=repeats)
            ratios = _ratios(costs)
            text += _table(f"world size {size}, {cases} cases", costs) + ratio_lines(ratios) + "\n"
            found[f"{size}/{cases}"] = {"costs": costs, "ratios": ratios}
    return text, {"machine": machine_facts(), "files": found}


def _measure(cases: int, *, world_size: int, repeats: int) -> dict[str, _Costs]:
    runs: dict[str, list[Run]] = {contestant.name: [] for contestant in _CONTESTANTS}
    names = [str(number) for number in range(cases)]
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="dist-bench-") as folder:
            for name, run in contest(
                dict.fromkeys(_CONTESTANTS, names), world_size=world_size, folder=Path(folder)
            ).items():
                for turn in run.turns:
                    if not turn.verdict.get("passed", True):
                        raise BenchError(f"{name}: case {turn.case} did not pass:\n{turn.verdict['text']}")
                runs[name].append(run)
    return {
        name: _Costs(
            tuple(1000 * (run.session_s - run.imported_s) / cases for run in of_one),
            tuple(1000 * run.cpu_s / cases for run in of_one),
        )
        for name, of_one in runs.items()
    }


def _ratios(costs: Mapping[str, _Costs]) -> dict[str, dict[str, float]]:
    # The cheaper raw fork, as in launch.py.
    yardstick = min((raw.name for raw in RAW), key=lambda name: statistics.median(costs[name].cpu_ms))
    raw = costs[yardstick]
    return {
        f"{name} / {yardstick}, {what}": paired_ratio(getattr(costs[name], field), getattr(raw, field))
        for name in (contestant.name for contestant in _CONTESTANTS if contestant not in RAW)
        for what, field in (("CPU", "cpu_ms"), ("wall", "wall_ms"))
    }


def _table(title: str, costs: Mapping[str, _Costs]) -> str:
    rows = [
        [name, *(f"{figure:.1f}" for figure in (*_figures(its.cpu_ms), *_figures(its.wall_ms)))]
        for name, its in costs.items()
    ]
    return table([title, "CPU ms/case", "min", "wall ms/case", "min"], rows)


def _figures(series: Sequence[float]) -> tuple[float, float]:
    return statistics.median(series), min(series)
