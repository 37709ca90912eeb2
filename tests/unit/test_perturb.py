"""Plans of delays, and the search for the fewest of them."""

from __future__ import annotations

import dataclasses

import pytest

from dist_testing.core.ground.backends import default_backend
from dist_testing.core.ground.case import Case, CaseResult
from dist_testing.core.ground.outcomes import Cause, Status, Verdict
from dist_testing.core.ground.spec import Spec
from dist_testing.perturb.delays import search
from dist_testing.perturb.plan import NAME, Plan, from_options, read_plan
from tests.support.results import case_of, refusal, result_of

_SPEC = Spec("", default_backend(), (2,), "fork")
_ALL = tuple((rank, call) for rank in range(3) for call in range(1, 9))


@pytest.mark.parametrize(
    ("value", "plan"),
    [
        (7, Plan(7)),
        ("7", Plan(7)),
        ("7:", Plan(7, only=())),
        ("7:0.3,2.11", Plan(7, only=((0, 3), (2, 11)))),
        (Plan(7, runs=3), Plan(7, runs=3)),
    ],
)
def test_values_of_a_plan(value: object, plan: Plan) -> None:
    """A report writes them, and the command line reads them."""
    assert read_plan("x", value) == plan
    assert read_plan("x", str(plan)) == dataclasses.replace(plan, runs=1)


@pytest.mark.parametrize("value", [-1, True, 1.5, None, "", "a", "1:1", "1:1.", "1:1.2,", str(1 << 31), "٣"])
def test_impossible_values(value: object) -> None:
    """If this fails, a mistake is a silent default."""
    assert "expected a seed from 0 to" in refusal(lambda: read_plan("x", value))


@pytest.mark.parametrize("given", [{}, {"--dist-perturb": "1"}])
@pytest.mark.parametrize("repeat", ["0", "-1", "x", "100001"])
def test_impossible_numbers_of_runs(given: dict[str, str], repeat: str) -> None:
    """If this fails, a mistake is a silent default, or a number of runs without a seed has no effect."""
    said = f"--dist-repeat={repeat}: expected a number from 1 to 100000, beside --dist-perturb"
    assert said in refusal(lambda: from_options(_SPEC, {**given, "--dist-repeat": repeat}))
    assert "beside --dist-perturb" in refusal(lambda: from_options(_SPEC, {"--dist-repeat": "5"}))


def test_delays_are_a_function_of_the_seed() -> None:
    """If this fails, a seed from CI shows nothing on another machine."""
    plans = [{key: Plan(seed).delay_ms(*key) for key in _ALL} for seed in range(50)]
    assert plans == [{key: Plan(seed).delay_ms(*key) for key in _ALL} for seed in range(50)]
    delays = [delay for plan in plans for delay in plan.values()]
    assert set(delays) == {0, 1, 10, 100}
    assert any(not any(plan[0, call] for call in range(1, 9)) and plan[1, 1] for plan in plans), (
        "one rank alone is slow"
    )


def test_only_some_delays() -> None:
    """A part of a plan has the same delays, and no others."""
    whole = Plan(3)
    (first, *_) = [key for key in _ALL if whole.delay_ms(*key)]
    part = Plan(3, only=(first,))
    assert [key for key in _ALL if part.delay_ms(*key)] == [first]
    assert part.delay_ms(*first) == whole.delay_ms(*first)


class _Cases:
    """Runs cases that fail if all of some delays take place."""

    def __init__(self, *needed: tuple[int, int], seed: int = 0) -> None:
        self._needed = set(needed)
        self._seed = seed
        self.ran: list[Plan] = []

    def run(self, case: Case) -> CaseResult:
        plan: Plan = case.settings[NAME]
        self.ran.append(plan)
        delays = [key for key in _ALL if plan.delay_ms(*key)]
        failed = plan.seed >= self._seed and set(delays) >= self._needed
        judged = Verdict(Status.FAILED, Cause.FAILURE, "x") if failed else Verdict(Status.PASSED)
        facts = {NAME: str(Plan(plan.seed, only=tuple(delays)))} if failed else {}
        return dataclasses.replace(result_of([], judged=judged, facts=facts), case=case)

    def search(self, plan: Plan) -> CaseResult:
        return search(self.run(case_of(3, settings={NAME: plan})), self.run)


def test_search_finds_the_fewest_delays() -> None:
    """If this fails, a report shows twenty delays, of which one counts."""
    delayed = [key for key in _ALL if Plan(4).delay_ms(*key)]
    needed = (delayed[0], delayed[-1])
    cases = _Cases(*needed, seed=4)
    result = cases.search(Plan(0, runs=10))
    assert result.verdict.status is Status.FAILED
    assert read_plan(NAME, result.facts[NAME]) == Plan(4, only=needed)
    assert [plan.seed for plan in cases.ran[:5]] == [0, 1, 2, 3, 4]
    assert len(cases.ran) < 50


def test_search_ends_with_the_last_seed() -> None:
    """A case without a race runs so often as the user says."""
    cases = _Cases(seed=99)
    assert cases.search(Plan(5, runs=3)).verdict.status is Status.PASSED
    assert [plan.seed for plan in cases.ran] == [5, 6, 7]


def test_failure_without_delays_is_no_race() -> None:
    """If this fails, the search goes on for minutes, and shows delays that have nothing to do with the failure."""
    cases = _Cases()
    seed = next(seed for seed in range(99) if any(Plan(seed).delay_ms(*key) for key in _ALL))
    assert "It fails without any delay, too." in cases.search(Plan(seed)).notes
    assert len(cases.ran) == 2
