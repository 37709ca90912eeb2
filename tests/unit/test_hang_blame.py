"""Which rank a hang comes from: no rank that is right is ever blamed, and the wrong one is among the suspects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from dist_testing.core.ground.outcomes import Kind, RankOutcome, verdict
from dist_testing.hang.analysis import RankView, analyse
from dist_testing.hang.blame import suspects
from dist_testing.hang.ledger import Wait, WaitKind
from dist_testing.hang.story import HangStory, blame_by_ledger, story_of
from tests.support.hang_machine import (
    LIMIT_MS,
    LIMITS,
    Groups,
    Machine,
    Program,
    Step,
    call,
    correct_program,
    view,
)

SETTINGS = settings(
    derandomize=True, database=None, deadline=None, max_examples=400, suppress_health_check=list(HealthCheck)
)


@st.composite
def faulty_program(draw: st.DrawFn) -> tuple[Program, Groups, int, bool]:
    """A correct program in which one rank does something else: also the rank, and whether it only leaves out steps."""
    programs, groups = draw(correct_program())
    rank = draw(st.integers(0, len(programs) - 1))
    own = list(programs[rank])
    kind = draw(st.sampled_from(["leave", "skip", "swap", "other", "more", "anything"]))
    at = draw(st.integers(0, max(0, len(own) - 1)))
    anything = st.builds(
        Step,
        st.sampled_from(["c1", "c2", "send", "recv"]),
        st.sampled_from([name for name, ranks in groups.items() if rank in ranks]),
        st.sampled_from([peer for peer in range(len(programs)) if peer != rank]),
        st.integers(0, 1),
    )
    match kind:
        case "leave":
            own = own[:at]
        case "skip":
            del own[at : at + 1]
        case "swap":
            own[at : at + 2] = reversed(own[at : at + 2])
        case "other" if own:
            own[at] = draw(anything)
        case "more":
            own.insert(at, draw(anything))
        case "anything":
            own = draw(st.lists(anything, max_size=6))
    steps = [own if other == rank else theirs for other, theirs in enumerate(programs)]
    return steps, groups, rank, kind in ("leave", "skip")


def _stuck(machine: Machine, choices: Sequence[int]) -> list[RankView]:
    for _ in machine.run(iter(choices)):
        pass
    views = machine.views()
    assume(analyse(views, LIMITS).is_proven)
    return views


@SETTINGS
@given(faulty_program(), st.lists(st.integers(0, 100), min_size=80, max_size=80))
def test_wrong_rank_is_a_suspect(faulty: tuple[Program, Groups, int, bool], choices: list[int]) -> None:
    """If this fails, a user looks for the fault on ranks that are right."""
    programs, groups, wrong, leaves_out = faulty
    analysis = analyse(_stuck(Machine(programs, groups), choices), LIMITS)
    found = suspects(analysis)
    assert wrong in found
    story = story_of(analysis)
    assert story is not None
    assert wrong in (story.culprits or story.suspects) or not leaves_out
    assert wrong not in story.victims or not leaves_out
    event("named" if story.culprits else f"one of {len(story.suspects)}")


def _story(views: Sequence[RankView]) -> HangStory:
    story = story_of(analyse(views, LIMITS))
    assert story is not None
    assert story.is_proven
    return story


_ALL = {"0": (0, 1, 2, 3)}
_PAIRS = {"0": (0, 1, 2, 3), "1": (0, 1)}


def _in(rank: int, group: str, number: int = 1, *, groups: Mapping[str, tuple[int, ...]] = _ALL) -> RankView:
    return view(rank, [call(group, number)], groups, Wait(WaitKind.COLLECTIVE, "c1", group))


def _ended(rank: int) -> RankView:
    return view(rank, [call("0", 1, is_done=True)], _ALL, None)


def test_rank_that_calls_once_more_than_all_others() -> None:
    """Three ranks have ended, and one is in a call of its own: they are right, or three ranks are wrong."""
    views = [*(_ended(rank) for rank in range(3)), _in(3, "0", 2)]
    story = _story(views)
    assert story.headline == (
        "ranks 0, 1, 2 ended the test; rank 3 waits for them in c1 #2 of the default group (test_f.py:6); "
        "the fault is on rank 3"
    )
    assert (story.culprits, story.suspects, story.victims) == ((3,), (), ())
    outcomes = [RankOutcome(rank, Kind.HUNG if rank == 3 else Kind.PASSED) for rank in range(4)]
    assert blame_by_ledger(verdict(outcomes), outcomes, story).culprit == 3


def test_two_ranks_in_two_groups_are_both_suspects() -> None:
    """Rank 0 may have made a call too many in the group of two, or rank 1 may have left it out."""
    views = [_in(0, "1", groups=_PAIRS), *(_in(rank, "0", groups=_PAIRS if rank == 1 else _ALL) for rank in (1, 2, 3))]
    story = _story(views)
    assert story.headline == (
        "ranks 0, 1 wait for each other: rank 0 in c1 #1 of group 1 (test_f.py:6); "
        "rank 1 in c1 #1 of the default group (test_f.py:6); the fault is on rank 0 or on rank 1"
    )
    assert (story.culprits, story.suspects, story.victims) == ((), (0, 1), (2, 3))
    outcomes = [RankOutcome(rank, Kind.HUNG) for rank in range(4)]
    found = blame_by_ledger(verdict(outcomes), outcomes, story)
    assert (found.culprit, found.suspects, found.victims) == (None, (0, 1), (2, 3))


def test_third_member_tells_which_of_two_is_wrong() -> None:
    """A witness in the sub-group: ranks 0 and 2 are in its call, so rank 1 has left it out."""
    groups = {"0": (0, 1, 2, 3), "1": (0, 1, 2)}
    views = [_in(rank, "1" if rank in (0, 2) else "0", groups=groups) for rank in range(4)]
    story = _story(views)
    assert story.headline.endswith("; the fault is on rank 1")
    assert (story.culprits, story.victims) == ((1,), (0, 2, 3))


@pytest.mark.parametrize("size", [3, 4])
def test_ring_has_no_suspect_of_its_own(size: int) -> None:
    """Any rank could begin; naming all of them says nothing."""
    groups = {"0": tuple(range(size))}
    receive = Wait(WaitKind.RECEIVE, "recv", "0", limit_ms=LIMIT_MS)
    views = [view(rank, [], groups, replace(receive, peer=(rank + 1) % size)) for rank in range(size)]
    story = _story(views)
    assert "the fault" not in story.headline
    assert (story.culprits, story.suspects, story.victims) == ((), tuple(range(size)), ())


def test_two_sides_of_two_ranks_are_more_than_one_fault() -> None:
    """No single rank explains it, so none is named."""
    wait = Wait(WaitKind.COLLECTIVE, "c1", "0")
    views = [view(rank, [call("0", 1, "c1" if rank < 2 else "c2")], _ALL, wait) for rank in range(4)]
    story = _story(views)
    assert "the fault" not in story.headline
    assert (story.culprits, story.suspects, story.victims) == ((), (), (0, 1, 2, 3))


def test_rank_that_left_is_named_of_two() -> None:
    """By the ledger alone, the other one may have called too much; a test that ends too early is the rule."""
    groups = {"0": (0, 1)}
    views = [view(0, [call("0", 1)], groups, Wait(WaitKind.COLLECTIVE, "c1", "0")), view(1, [], groups, None)]
    assert suspects(analyse(views, LIMITS)) == (0, 1)
    assert _story(views).culprits == (1,)


def test_world_that_can_go_on_has_no_suspects() -> None:
    """A rank that has not come yet is no proof of anything."""
    assert (
        suspects(analyse([replace(_ended(0), ledger=None, silence="gave no answer", ended=""), _in(1, "0", 2)], LIMITS))
        == ()
    )
