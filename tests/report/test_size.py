"""The page of a large job: small enough to keep, and its failures come first."""

from __future__ import annotations

import random
from dataclasses import replace

from dist_testing.core.ground.record import CaseRecord, Ledger, Phase, RankRecord
from dist_testing.report.model import InvocationRecord, LogRecord, Report, RunRecord
from dist_testing.report.page import page
from tests.report.streams import PHASES, RULE


def _case(number: int, chance: random.Random, *, fails: bool, world_size: int = 8) -> CaseRecord:
    ranks = []
    for rank in range(world_size):
        marks = [0.01 + chance.random() * 0.01]
        for seconds in (0.1, 0.05, 0.01, 1.0, 0.01, 0.02):
            marks.append(marks[-1] + seconds * (0.5 + chance.random()))
        phases = tuple(Phase(name, marks[index], marks[index + 1]) for index, name in enumerate(PHASES))
        outcome = ("raised" if rank == 3 else "stopped") if fails else "passed"
        ranks.append(RankRecord(rank, outcome, outcome, "call", "", seen_s=marks[4], phases=phases))
    name = f"pkg.test_{number % 20}.TestModel.test_case_number[{number}-{chance.random():.6f}]"
    plain = CaseRecord(
        name, "passed", name, world_size=world_size, isolation="fork", ranks=tuple(ranks), duration_s=1.3
    )
    if not fails:
        return plain
    frames = "\n".join(f'  File "m_{chance.randrange(999)}.py", line {chance.randrange(999)}, in f' for _ in range(60))
    text = f"head\n{RULE}\noutput of rank 3:\n{frames}\n{RULE}\nrank 3 of 8 failed first: it raised\n\n{frames}"
    message = f"rank 3 raised ValueError: the sum is {chance.random()}"
    victims = tuple(rank for rank in range(world_size) if rank != 3)
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


def test_two_hundred_failures_on_sixty_four_ranks_fit_too() -> None:
    """If it fails, a job in which all is broken has a page that does not open. Marks of HTML take five bytes each."""
    chance = random.Random(1)
    cases = []
    for number in range(400):
        case = _case(number, chance, fails=number % 2 == 0, world_size=64)
        ranks = tuple(replace(rank, description='"<&>"' * 120) for rank in case.ranks)
        ledgers = tuple(Ledger(rank, 0.5, f"waits <{rank}>" * 40, "<f.py>" * 40) for rank in range(64))
        if case.status == "failed":
            name = f"{case.name}[{'<>' * 100}]"
            case = replace(
                case, name=name, nodeid=name, ranks=ranks, ledgers=ledgers, text=case.text.replace("line", "<&>")
            )
        cases.append(case)
    skipped = [CaseRecord(f"t.{'&' * 400}{n}", "skipped", message=f"{'>' * 300}{n % 200}") for n in range(2000)]
    report = Report((InvocationRecord("big"),), (RunRecord("//pkg:a", cases=(*cases, *skipped)),))
    text = page(report, made_wall_s=0.0)
    assert len(text.encode()) <= 5_000_000
    # Each of the first two hundred is there, the first ones with all details.
    assert 'id="failure-200"' in text
    assert text.index("Collective ledger") < text.index('id="failure-2"') < text.index("The page has no room")
