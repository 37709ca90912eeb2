"""Which rank a hang comes from: no rank that is right is ever blamed, and the wrong one is among the suspects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from dist_testing.core.ground.outcomes import Cause, Kind, RankOutcome, verdict
from dist_testing.hang.analysis import RankView, analyse
from dist_testing.hang.blame import suspects
from dist_testing.hang.ledger import Wait, WaitKind
from dist_testing.hang.story import blame_by_ledger, story_of
from tests.support.hang_machine import (
    LIMITS,
    Groups,
    Machine,
    Program,
    Step,
    call,
    correct_program,
    view,
)
from tests.support.results import LIMIT_MS

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
    assert wrong in (story.culprits or story.suspects) or not leaves_out
    assert wrong not in story.victims or not leaves_out
    event("named" if story.culprits else f"one of {len(story.suspects)}")


_ALL = {"0": (0, 1, 2, 3)}
_PAIRS = {"0": (0, 1, 2, 3), "1": (0, 1)}
_THREE = {"0": (0, 1, 2, 3), "1": (0, 1, 2)}
_RECEIVE = Wait(WaitKind.RECEIVE, "recv", "0", limit_ms=LIMIT_MS)
_AT = "(test_f.py:6)"


def _in(rank: int, group: str, number: int = 1, *, groups: Mapping[str, tuple[int, ...]] = _ALL) -> RankView:
    return view(rank, [call(group, number)], groups, Wait(WaitKind.COLLECTIVE, "c1", group))


def _ended(rank: int) -> RankView:
    return view(rank, [call("0", 1, is_done=True)], _ALL, None)


def _calling(*operations: str) -> list[RankView]:
    """Ranks of one group that are in its call number 4, each in one of its own."""
    groups, wait = {"0": tuple(range(len(operations)))}, Wait(WaitKind.COLLECTIVE, "c1", "0")
    return [view(rank, [call("0", 4, operation)], groups, wait) for rank, operation in enumerate(operations)]


def _ring(size: int) -> list[RankView]:
    groups = {"0": tuple(range(size))}
    return [view(rank, [], groups, replace(_RECEIVE, peer=(rank + 1) % size)) for rank in range(size)]


@pytest.mark.parametrize(
    ("views", "headline", "culprits", "suspects_", "victims"),
    [
        pytest.param(
            [_in(0, "0", groups={"0": (0, 1)}), view(1, [], {"0": (0, 1)}, None)],
            f"rank 1 ended the test; rank 0 waits for it in c1 #1 of the default group {_AT}",
            (1,),
            (),
            (0,),
            # By the ledger alone, the other one may have called too much; a test that ends too early is the rule.
            id="of two, the rank that has ended",
        ),
        pytest.param(
            _calling("c1", "c2", "c1"),
            f"the ranks disagree about call #4 of the default group: rank 1 calls c2 {_AT}, ranks 0, 2 call c1 {_AT}",
            (1,),
            (),
            (0, 2),
            id="the rank that is alone with its call",
        ),
        pytest.param(
            _calling("c1", "c1", "c2", "c2"),
            "the ranks disagree about call #4 of the default group: "
            f"ranks 0, 1 call c1 {_AT}, ranks 2, 3 call c2 {_AT}",
            (),
            (),
            (0, 1, 2, 3),
            id="no single rank explains two sides of two ranks",
        ),
        pytest.param(
            [*(_ended(rank) for rank in range(3)), _in(3, "0", 2)],
            f"ranks 0, 1, 2 ended the test; rank 3 waits for them in c1 #2 of the default group {_AT}; "
            "the fault is on rank 3",
            (3,),
            (),
            (),
            id="a call of its own: the others are right, or three ranks are wrong",
        ),
        pytest.param(
            [_in(0, "1", groups=_PAIRS), *(_in(rank, "0", groups=_PAIRS if rank == 1 else _ALL) for rank in (1, 2, 3))],
            f"ranks 0, 1 wait for each other: rank 0 in c1 #1 of group 1 {_AT}; "
            f"rank 1 in c1 #1 of the default group {_AT}; the fault is on rank 0 or on rank 1",
            (),
            (0, 1),
            (2, 3),
            id="rank 0 has made a call too many in the group of two, or rank 1 has left it out",
        ),
        pytest.param(
            [_in(rank, "1" if rank in (0, 2) else "0", groups=_THREE) for rank in range(4)],
            f"ranks 0, 1 wait for each other: rank 0 in c1 #1 of group 1 {_AT}; "
            f"rank 1 in c1 #1 of the default group {_AT}; the fault is on rank 1",
            (1,),
            (),
            (0, 2, 3),
            id="rank 2, in the call of the sub-group, is a witness against rank 1",
        ),
        *(
            pytest.param(
                _ring(size),
                f"ranks {', '.join(map(str, range(size)))} wait for each other: "
                + "; ".join(f"rank {rank} in recv from rank {(rank + 1) % size} {_AT}" for rank in range(size)),
                (),
                tuple(range(size)),
                (),
                id=f"any of {size} ranks in a ring could begin",
            )
            for size in (2, 3, 4)
        ),
    ],
)
def test_story(
    views: list[RankView],
    headline: str,
    culprits: tuple[int, ...],
    suspects_: tuple[int, ...],
    victims: tuple[int, ...],
) -> None:
    """If this fails, the report blames a rank that is right, or does not name the calls and the lines."""
    story = story_of(analyse(views, LIMITS))
    assert story.analysis.is_proven
    assert story.headline == headline
    assert (story.culprits, story.suspects, story.victims) == (culprits, suspects_, victims)
    outcomes = [RankOutcome(view.rank, Kind.PASSED if view.ended else Kind.HUNG) for view in views]
    found = blame_by_ledger(verdict(outcomes), outcomes, story)
    assert (found.cause, found.reason, found.is_proven) == (Cause.HANG, headline, True)
    assert found.culprit == (culprits[0] if culprits else None)
    assert (found.suspects, found.victims) == (suspects_, victims)


def test_world_that_can_go_on_has_no_suspects() -> None:
    """A rank that has not come yet is no proof of anything."""
    silent = replace(_ended(0), ledger=None, silence="gave no answer", ended="")
    assert suspects(analyse([silent, _in(1, "0", 2)], LIMITS)) == ()
