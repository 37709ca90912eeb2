"""Outcomes as exit codes, as the unittest classes report them."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.outcomes import Kind, RankOutcome
from dist_testing.core.ground.skips import TEST_SKIPS
from dist_testing.core.unittest.exits import declared_exits, exit_code, expected_exits, forgiven, names_of


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        (0, RankOutcome(0, Kind.PASSED)),
        (73, RankOutcome(0, Kind.SKIPPED, reason=TEST_SKIPS["small_worldsize"].message)),
        (86, RankOutcome(0, Kind.SKIPPED, reason="another")),
        (10, RankOutcome(0, Kind.RAISED)),
        (3, RankOutcome(0, Kind.EXITED, exit_code=3)),
        (0, RankOutcome(0, Kind.EXITED, exit_code=0)),
        (0, RankOutcome(0, Kind.EXITED)),
        (0, RankOutcome(0, Kind.SIGNALLED)),
        (-11, RankOutcome(0, Kind.SIGNALLED, signal=11)),
        (-9, RankOutcome(0, Kind.HUNG)),
        (-9, RankOutcome(0, Kind.STOPPED)),
        (10, RankOutcome(0, Kind.NEVER_STARTED)),
        (10, RankOutcome(0, Kind.UNREADABLE)),
    ],
)
def test_every_outcome_has_an_exit_code(code: int, outcome: RankOutcome) -> None:
    """If this fails, suites that compare `processes[0].exitcode` with torch's codes fail."""
    assert exit_code(outcome) == code


def test_only_exits_and_signals_are_forgiven() -> None:
    """If this fails, a declared exit code hides an exception, a hang or another exit code."""
    for kind in Kind:
        outcome = RankOutcome(0, kind, exit_code=6, signal=6)
        passed = replace(outcome, kind=Kind.PASSED)
        assert forgiven(outcome, None) == (passed if kind in (Kind.EXITED, Kind.SIGNALLED) else outcome)
        assert forgiven(outcome, 6) == (passed if kind is Kind.EXITED else outcome)
        assert forgiven(outcome, -6) == (passed if kind is Kind.SIGNALLED else outcome)
        assert forgiven(outcome, 7) == outcome


def test_methods_go_by_several_names() -> None:
    """If this fails, a declaration is lost on a method that is bound, or that a decorator wraps."""

    class Case:
        @expected_exits({1: -9})
        def test_it(self) -> None:
            """Never called."""

    inner = Case.test_it

    def outer(self: Case) -> None:
        inner(self)

    outer.__wrapped__ = inner  # type: ignore[attr-defined]
    outer.__dict__.update(inner.__dict__)
    bound = outer.__get__(Case())
    assert names_of(bound) == (bound, outer, inner)
    assert declared_exits(bound) == {1: -9}
    # Of rank 0, of the largest exit code, and of the last real-time signal.
    for exits in ({0: -9}, {1: 255, 2: 0}, {3: 1 - signal.NSIG}):
        assert declared_exits(expected_exits(exits)(lambda: None)) == exits
    assert declared_exits(test_methods_go_by_several_names) == {}


@pytest.mark.parametrize(
    "exits",
    [
        *(None, {}, [1], {-1: 0}, {"1": 0}, {1: "SIGKILL"}, {1: None}, {1: 256}, {1: -signal.NSIG}, {1: True}),
        {0: -9, 1: "SIGKILL"},
    ],
)
def test_bad_declaration_is_refused(exits: object) -> None:
    """A fault test with a slip in its table would expect nothing."""
    with pytest.raises(UsageError) as caught:
        expected_exits(exits)  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"@expected_exits({exits!r}): expected a table of one or more ranks, each with")
