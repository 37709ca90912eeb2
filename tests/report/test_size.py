"""The page of a large job: small enough to keep, and its failures come first."""

from __future__ import annotations

import random
from dataclasses import replace

from dist_testing.core.ground.record import CaseRecord, Phase, RankRecord
from dist_testing.report.model import InvocationRecord, LogRecord, Report, RunRecord
from dist_testing.report.page import page

_PHASES = ("start", "init", "setup", "call", "teardown", "destroy")
_RULE = "-" * 100


def _case(number: int, chance: random.Random, *, fails: bool) -> CaseRecord:
    begin = number * 2.0
    ranks = []
    for rank in range(8):
        marks = [0.01 + chance.random() * 0.01]
        for seconds in (0.1, 0.05, 0.01, 1.0, 0.01, 0.02):
            marks.append(marks[-1] + seconds * (0.5 + chance.random()))
        phases = tuple(Phase(name, marks[index], marks[index + 1]) for index, name in enumerate(_PHASES))
        outcome = ("raised" if rank == 3 else "stopped") if fails else "passed"
        ranks.append(RankRecord(rank, outcome, outcome, "call", "", seen_s=marks[4], phases=phases))
    name = f"pkg.test_{number % 20}.TestModel.test_case_number[{number}-{chance.random():.6f}]"
    plain = CaseRecord(
        name,
        "passed",
        duration_s=1.3,
        world_size=8,
        isolation="fork",
        ranks=tuple(ranks),
        began_at_s=begin,
        nodeid=name,
    )
    if not fails:
        return plain
    frames = "\n".join(f'  File "m_{chance.randrange(999)}.py", line {chance.randrange(999)}, in f' for _ in range(60))
    text = f"head\n{_RULE}\noutput of rank 3:\n{frames}\n{_RULE}\nrank 3 of 8 failed first: it raised\n\n{frames}"
    message = f"rank 3 raised ValueError: the sum is {chance.random()}"
    victims = (0, 1, 2, 4, 5, 6, 7)
    return replace(plain, status="failed", message=message, text=text, cause="failure", culprit=3, victims=victims)


def test_ten_thousand_cases_on_eight_ranks_fit_into_five_megabytes() -> None:
    """If it fails, the page of a large CI job does not open in a browser, or is not kept by the CI server."""
    chance = random.Random(1)
    runs = []
    for target in range(20):
        cases = tuple(_case(number, chance, fails=number % 50 == 0) for number in range(500))
        logs = []
        for rank in range(8):
            lines = [f"step {step} loss {chance.random():.6f} time {chance.random():.6f}" for step in range(1500)]
            logs.append(LogRecord(f"{target}.rank-{rank}.log", "\n".join(lines), "outputs.zip"))
        logs.append(LogRecord("test.log", "\n".join(f"{chance.random()}" for _ in range(3000)), "test.log"))
        runs.append(RunRecord(f"//pkg:target_{target}_gloo", cases=cases, logs=tuple(logs), wall_zero_s=1.7e9))
    text = page(Report((InvocationRecord("big"),), tuple(runs)), made_wall_s=0.0)
    assert len(text.encode()) <= 5_000_000
    # Failures stand before the table, so that a browser shows them at once.
    assert text.index("200 failed") < text.index('id="failure-200"') < text.index('id="rows"')
    assert text.count("test_case_number[") > 10_000
