#!/usr/bin/env python3
"""Measure the time from a rank's death to the verdict, by kind of death.

    python tools/bench/detect.py [--rounds 3] [--quick]

World of 4 over gloo. After one collective, rank 0 or rank 2 dies. The other ranks are in another collective, where gloo
reports the closed connection, or asleep, where nothing reports it (as in a wait for a store, or on a device). The rank
writes down the time and dies. The verdict comes when the library gives its report to pytest, or torch's class gives its
error to unittest. The two contestants take turns case by case.

torch's class notices most deaths only at its own time limit. The limit is 20 s here and counts from the start of the
ranks; the default is 300 s. Such rows are marked with `limit`.

`right` counts the verdicts that are a failure and blame exactly the rank that died.

torch's class needs the packages expecttest, hypothesis and numpy; without them, use --no-torch.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from contest import Contestant, Turn, contest, pytest_command
from figures import BenchError, summarise, table
from options import bench_parser, count, parse, run_bench, some_of

WORLD_SIZE = 4
KINDS = ("raise", "SIGSEGV", "SIGKILL", "abort", "_exit(0)", "_exit(3)", "_exit(77)", "sys.exit(3)")
RANKS = (0, 2)
PEERS = ("collective", "asleep")
# Instead of 300 s, with which the bench would take two hours. Seconds.
TORCH_LIMIT_S = 20

LIBRARY = Contestant("library", pytest_command("test_cases.py::test_death"))
TORCH = Contestant(
    "torch MultiProcessTestCase",
    ("-m", "contestants.torch_suite", "death"),
    (("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", str(TORCH_LIMIT_S)),),
)

# torch's class names the processes that it blames. The text is the same for its time limit.
_TORCH_BLAME = re.compile(r"Process (\d+) (?:exited|terminated)")
_TORCH_LIMIT = "terminated or timed out"


@dataclass(frozen=True, slots=True)
class Detection:
    """One death, as a contestant reported it."""

    case: str  # its name, without the round
    seconds: float  # time from the death to the verdict
    failed: bool  # whether the verdict is a failure
    blamed: tuple[int, ...]  # the ranks that the verdict names as the cause
    at_limit: bool  # whether torch's time limit ended the case

    @property
    def is_right(self) -> bool:
        """Whether the verdict is right."""
        return self.failed and self.blamed == (int(self.case.split("-")[1]),)


def detection(contestant: Contestant, turn: Turn, folder: Path) -> Detection | None:
    """Read a contestant's report of a death.

    Returns:
        None if there was no death, because torch's time limit passed while its ranks started.
    """
    death = folder / turn.case
    text = turn.verdict.get("text", "")
    if turn.verdict_s is None or not death.exists():
        if contestant is TORCH and _TORCH_LIMIT in text:
            return None
        raise BenchError(f"{contestant.name}: in {turn.case} no rank died:\n{text}")
    blamed = turn.verdict["blamed"] if contestant is LIBRARY else map(int, _TORCH_BLAME.findall(text))
    return Detection(
        case=turn.case.rpartition("-")[0],
        seconds=turn.verdict_s - float(death.read_text("utf-8")),
        failed=not turn.verdict["passed"],
        blamed=tuple(sorted(set(blamed))),
        at_limit=contestant is TORCH and _TORCH_LIMIT in text,
    )


def measure(rounds: Mapping[Contestant, int], names: Sequence[str]) -> dict[str, list[Detection]]:
    """Run all cases on every contestant, for its number of rounds; return contestant's name -> what it reported.

    Raises:
        BenchError: If a contestant does not run its cases.
    """
    cases = {
        contestant: [f"{name}-{number}" for number in range(of_contestant) for name in names]
        for contestant, of_contestant in rounds.items()
    }
    with tempfile.TemporaryDirectory(prefix="dist-bench-") as folder:
        runs = contest(cases, world_size=WORLD_SIZE, folder=Path(folder))
        return {
            contestant.name: [
                found
                for turn in runs[contestant.name].turns
                if (found := detection(contestant, turn, runs[contestant.name].folder)) is not None
            ]
            for contestant in rounds
        }


def result_table(results: Mapping[str, Sequence[Detection]], names: Sequence[str]) -> str:
    """Return the table, with one line per case."""
    header = ["death, rank, peers; seconds to the verdict"]
    for name in results:
        header += [f"{name}: median", "max", "right", ""]
    lines = []
    for name in names:
        line = [" ".join(name.split("-"))]
        for detections in results.values():
            of_case = [found for found in detections if found.case == name]
            if not of_case:
                line += ["not started in time", "", "", "limit"]
            else:
                seconds = summarise([found.seconds for found in of_case])
                right = f"{sum(found.is_right for found in of_case)}/{len(of_case)}"
                limit = "limit" if any(found.at_limit for found in of_case) else ""
                line += [f"{seconds.median:.3f}", f"{seconds.largest:.3f}", right, limit]
        lines.append(line)
    return table(header, lines)


def main() -> int:
    """Measure and print."""
    parser = bench_parser(__doc__, quick=("--rounds=1", "--kinds=raise,SIGKILL", "--no-torch"), has_torch=True)
    parser.add_argument("--rounds", type=count, default=3, help="deaths of each kind for the library, default 3")
    parser.add_argument("--torch-rounds", type=count, default=1, help="the same for torch's class, default 1")
    parser.add_argument("--kinds", type=some_of(KINDS), default=KINDS, help=f"of deaths, default {','.join(KINDS)}")
    options = parse(parser)
    names = [f"{kind}-{rank}-{peers}" for kind, rank, peers in product(options.kinds, RANKS, PEERS)]
    rounds = {LIBRARY: options.rounds, **({TORCH: options.torch_rounds} if options.torch else {})}
    return run_bench("detect", lambda: result_table(measure(rounds, names), names))


if __name__ == "__main__":
    sys.exit(main())
