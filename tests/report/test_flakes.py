"""Flake rates: their arithmetic against known values, planted flakes, and who may vote."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from dist_testing.report.flakes import Flake, Vote, flake_lines, measured, votes, wilson
from dist_testing.report.gather import gather
from dist_testing.report.page import page
from tests.report.streams import Action, Case, build_events, write_build_events, write_stream

_VOTE = Vote("//a:a", "t.x", "gloo", 4, "r1", "", None, is_machine=False)


def _history(rate: float, runs: int, seed: int) -> list[Vote]:
    chance = random.Random(seed)
    return [replace(_VOTE, kind="hang" if chance.random() < rate else "") for _ in range(runs)]


def test_claims_are_those_of_wilsons_interval() -> None:
    """If it fails, a claim is made too early or never."""

    def more(failures: int, runs: int, rate: float = 0.01) -> int:
        return Flake("//a:a", "t.x", "gloo", 4, runs, failures).more_runs(rate)

    assert (more(0, 0), more(0, 380), more(0, 381)) == (381, 1, 0)
    assert more(0, 0, 0.05) == 73
    assert wilson(1, 10 + more(1, 10))[1] < 0.01 <= wilson(1, 9 + more(1, 10))[1]
    assert wilson(1, 10) == pytest.approx((0.01787621, 0.40415003), abs=1e-6)
    assert (wilson(0, 0), wilson(0, 5)[0], wilson(5, 5)[1]) == ((0.0, 1.0), 0.0, 1.0)


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.2])
def test_the_interval_covers_planted_rates_as_often_as_it_says(rate: float) -> None:
    """If it fails, the page promises 95 % and keeps less, or its intervals are too wide to be of use."""
    covered = 0
    histories = 1000
    chance = random.Random(17)
    for _ in range(histories):
        runs = chance.randint(400, 1200)
        failures = sum(chance.random() < rate for _ in range(runs))
        low, high = wilson(failures, runs)
        covered += low <= rate <= high
    assert 0.93 <= covered / histories <= 0.97


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.2])
def test_planted_flakes_are_found(rate: float) -> None:
    """If it fails, flaky tests stay unknown."""
    found = [measured(_history(rate, 400, seed))[0] for seed in range(20)]
    # At 1 %, 400 runs miss a flake in 1.8 % of the histories.
    assert sum(flake.label == "flaky" for flake in found) >= 19
    assert all(flake.runs == 400 and flake.kinds["hang"] == flake.failures for flake in found)


def test_no_stable_case_is_labelled() -> None:
    """If it fails, good tests get a bad name."""
    stable = [replace(_VOTE, case=f"t.{number}") for number in range(50) for _ in range(100)]
    assert {flake.label for flake in measured(stable)} == {"no failure"}
    broken = [replace(_VOTE, kind="crash") for _ in range(100)]
    assert [(flake.label, flake.runs, flake.broken) for flake in measured(broken)] == [("broken", 0, 100)]


def test_only_runs_with_equal_inputs_vote_together() -> None:
    """If it fails, a change that broke a test and one that mended it make a flake."""
    mended = [replace(_VOTE, kind="crash")] * 3 + [replace(_VOTE, inputs="r2")] * 3
    (flake,) = measured(mended)
    assert (flake.label, flake.runs, flake.failures, flake.broken) == ("broken", 3, 0, 3)
    assert measured([replace(vote, inputs="") for vote in mended])[0].label == "flaky"


def test_a_failure_of_the_machine_is_no_vote() -> None:
    """If it fails, a bad worker makes good tests flaky."""
    (flake,) = measured([_VOTE, _VOTE, replace(_VOTE, kind="infrastructure", is_machine=True)])
    assert (flake.label, flake.runs, flake.machine) == ("no failure", 2, 1)


def test_the_flakiest_comes_first_and_tells_kind_and_culprit() -> None:
    """If it fails, people mend the wrong test first."""
    often = [
        replace(_VOTE, case="t.often", kind="hang" if n % 5 == 0 else "", culprit=0 if n % 5 == 0 else None)
        for n in range(100)
    ]
    # A higher rate of very few runs says less.
    few = [replace(_VOTE, case="t.few", kind="crash" if n == 0 else "") for n in range(3)]
    wanders = [
        replace(_VOTE, case="t.wanders", kind="crash" if n < 4 else "", culprit=n if n < 4 else None)
        for n in range(100)
    ]
    found = measured([*few, *wanders, *often])
    assert [flake.case for flake in found] == ["t.often", "t.few", "t.wanders"]
    assert found[0].culprit_words == "always rank 0"
    assert found[2].culprit_words == "wanders: ranks 0 (1), 1 (1), 2 (1), 3 (1)"
    assert dict(found[0].kinds) == {"hang": 20}


def test_runs_and_attempts_of_build_events_vote_and_cached_ones_do_not(tmp_path: Path) -> None:
    """If it fails, a cached success counts as a hundred runs."""
    actions = []
    for number in range(1, 7):
        xml = tmp_path / f"{number}.xml"
        child = '<failure message="rank 2 hung"/>' if number == 3 else ""
        properties = (
            '<properties><property name="cause" value="hang"/><property name="culprit" value="2"/></properties>'
        )
        case = f'<testcase classname="t" name="x">{properties if child else ""}{child}</testcase>'
        xml.write_text(f'<testsuite name="//a:a">{case}</testsuite>', encoding="utf-8")
        more = {"cachedLocally": True} if number > 4 else {}
        actions.append(Action("//a:a", xml, "FAILED" if number == 3 else "PASSED", more, {"run": number}))
    report = gather([write_build_events(tmp_path / "b.json", build_events(actions))])
    (flake,) = measured(votes(report))
    assert (flake.runs, flake.failures, flake.culprit_words, dict(flake.kinds)) == (4, 1, "rank 2", {"hang": 1})
    text = page(report, made_wall_s=0.0)
    assert "1 of 4" in text
    assert "Flakes (1)" in text


def test_a_target_that_times_out_now_and_then_is_flaky(tmp_path: Path) -> None:
    """If it fails, a target that loses its results when it fails is never flaky."""
    actions = []
    for number in range(1, 5):
        xml = tmp_path / f"{number}.xml"
        xml.write_text('<testsuite name="//a:a"><testcase classname="t" name="x"/></testsuite>', encoding="utf-8")
        actions.append(Action("//a:a", xml, "TIMEOUT" if number == 2 else "PASSED", identity={"run": number}))
    found = measured(votes(gather([write_build_events(tmp_path / "b.json", build_events(actions))])))
    assert [(flake.case, flake.runs, flake.failures) for flake in found] == [
        ("(the target as a whole)", 4, 1),
        ("t.x", 4, 0),
    ]


@pytest.mark.parametrize(("same", "label"), [(True, "flaky"), (False, "broken")])
def test_invocations_of_unknown_sources_vote_together_only_if_the_user_vouches(
    tmp_path: Path, same: bool, label: str
) -> None:
    """If it fails, a folder of old runs makes every mended test flaky."""
    write_stream(tmp_path / "a.jsonl", [Case("t.py::x", "failed", "m", cause="failure", culprit=0)])
    write_stream(tmp_path / "b.jsonl", [Case("t.py::x")])
    report = gather([tmp_path])
    runs = [replace(run, target="t") for run in report.runs]
    assert [flake.label for flake in measured(votes(replace(report, runs=tuple(runs)), same_inputs=same))] == [label]


def test_runs_of_pytest_vote_together_whatever_their_files_are_called(tmp_path: Path) -> None:
    """If it fails, a history of event streams of plain pytest has no flakes."""
    for number in range(5):
        case = Case("t.py::x", "failed" if number == 3 else "passed", "m", "", 2, "failure" if number == 3 else "", 1)
        write_stream(tmp_path / f"run-{number}.jsonl.gz", [case])
    report = gather([tmp_path])
    (flake,) = measured(votes(report, same_inputs=True))
    assert (flake.label, flake.case, flake.failures, flake.runs) == ("flaky", "t.x", 1, 5)
    assert next(flake_lines([flake], 0.01)).startswith("FLAKY  t.x: 1 of 5 failed")
    # The same failure of two runs stands once on the page.
    write_stream(tmp_path / "run-5.jsonl.gz", [Case("t.py::x", "failed", "m", "", 2, "failure", 1)])
    text = page(gather([tmp_path]), made_wall_s=0.0)
    assert "and 1 more run like this" in text
    assert ">2 failed</h1>" in text
