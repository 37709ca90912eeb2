"""What is proven from ledgers, and what is not: every state of small random programs, and the reasons not to prove."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dist_testing.engine.hang import RankView, analyse
from dist_testing.engine.hang_story import HangStory, blame_by_ledger, mark_stuck, tell
from dist_testing.outcomes import Cause, Kind, RankOutcome, Status, Verdict, verdict
from dist_testing.process.ledger import Call, Group, Ledger, Place, Wait, WaitKind

SETTINGS = settings(
    derandomize=True, database=None, deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow]
)
LIMIT_MS = 12_345
LIMITS = frozenset({LIMIT_MS})


@dataclass(frozen=True)
class Step:
    """One operation of one rank.

    Attributes:
        operation: A collective's name, "send", "recv" or "get".
        group: Name of the group of a collective.
        peer: Of a send or receive; -1 for a receive from any rank.
        tag: Of a send or receive.
    """

    operation: str
    group: str = "0"
    peer: int = -1
    tag: int = 0


Program = Sequence[Sequence[Step]]
Groups = dict[str, tuple[int, ...]]


class Machine:
    """The least that a communication library must do: runs a program of each rank, in any order."""

    def __init__(self, programs: Program, groups: Groups) -> None:
        self.programs = programs
        self.groups = groups
        # The number of the operation that each rank is in.
        self.at = [0] * len(programs)

    def step(self, rank: int) -> Step | None:
        """The operation that a rank is in; None at its end."""
        program = self.programs[rank]
        return program[self.at[rank]] if self.at[rank] < len(program) else None

    def begun(self, rank: int, group: str) -> list[str]:
        """The collectives that a rank has begun on a group."""
        steps = self.programs[rank][: self.at[rank] + 1]
        return [step.operation for step in steps if step.group == group and step.operation.startswith("c")]

    def ready(self) -> list[tuple[int, ...]]:
        """Ranks whose operation can end now, each with a peer whose operation ends with it."""
        found: list[tuple[int, ...]] = []
        for rank in range(len(self.programs)):
            step = self.step(rank)
            if step is None or step.operation == "get":
                continue
            if step.operation == "recv":
                found += [
                    (rank, peer)
                    for peer in range(len(self.programs))
                    for theirs in [self.step(peer)]
                    if theirs is not None
                    and theirs.operation == "send"
                    and (theirs.peer, theirs.tag) == (rank, step.tag)
                    and step.peer in (-1, peer)
                ]
            elif step.operation != "send":
                number = len(self.begun(rank, step.group))
                calls = [self.begun(member, step.group)[number - 1 : number] for member in self.groups[step.group]]
                if all(call == [step.operation] for call in calls):
                    found.append((rank,))
        return found

    def run(self, choices: Iterator[int]) -> Iterator[None]:
        """Stop at each state until nothing can end any more."""
        yield
        while ready := self.ready():
            for rank in ready[next(choices) % len(ready)]:
                self.at[rank] += 1
            yield

    def views(self) -> list[RankView]:
        """What the ledgers say of this state."""
        return [self._view(rank) for rank in range(len(self.programs))]

    def _view(self, rank: int) -> RankView:
        step = self.step(rank)
        groups = {name: ranks for name, ranks in self.groups.items() if rank in ranks}
        calls = []
        for name in groups:
            begun = self.begun(rank, name)
            pending = step is not None and step.operation.startswith("c") and step.group == name
            for number, operation in enumerate(begun, 1):
                calls.append(call(name, number, operation, is_done=not (pending and number == len(begun))))
        wait = None
        if step is not None:
            kinds = {"send": WaitKind.SEND, "recv": WaitKind.RECEIVE, "get": WaitKind.STORE}
            kind = kinds.get(step.operation, WaitKind.COLLECTIVE)
            wait = Wait(kind, step.operation, step.group, step.peer, step.tag, limit_ms=LIMIT_MS)
        return view(rank, calls, groups, wait)


def call(group: str, number: int, operation: str = "c1", *, is_done: bool = False, limit_ms: int = LIMIT_MS) -> Call:
    """A call of gloo."""
    return Call(group, 0, number, "gloo", operation, "[[3]]", "Float", is_done, limit_ms)


def view(rank: int, calls: Sequence[Call], groups: Mapping[str, tuple[int, ...]], wait: Wait | None) -> RankView:
    """A rank that waits; that has ended if there is nothing that it waits for."""
    ledger = Ledger(
        is_recording=True,
        is_complete=True,
        groups=tuple(Group(name, ranks) for name, ranks in groups.items()),
        calls=tuple(calls),
        last={call.group: call.number for call in calls},
        waits=() if wait is None else (wait,),
        places=(
            Place("all_reduce", "/x/torch/distributed/distributed_c10d.py", 7, 2),
            Place("f", "/x/test_f.py", 6, 4),
        ),
        others=(),
    )
    return RankView(rank, "" if wait is not None else "ended the test", ledger)


@st.composite
def groups_of(draw: st.DrawFn, size: int) -> Groups:
    """The default group, and up to two others."""
    groups = {"0": tuple(range(size))}
    for name in "12"[: draw(st.integers(0, 2))]:
        groups[name] = tuple(sorted(draw(st.sets(st.integers(0, size - 1), min_size=2, max_size=size))))
    return groups


@st.composite
def any_program(draw: st.DrawFn) -> tuple[Program, Groups]:
    """Ranks that do what they like: most of these worlds lock up."""
    size = draw(st.integers(2, 5))
    groups = draw(groups_of(size))
    programs = []
    for rank in range(size):
        others = st.sampled_from([peer for peer in range(size) if peer != rank])
        mine = st.sampled_from([name for name, ranks in groups.items() if rank in ranks])
        step = st.one_of(
            st.builds(Step, st.sampled_from(["c1", "c1", "c1", "c2"]), mine),
            st.builds(lambda peer, tag: Step("send", peer=peer, tag=tag), others, st.integers(0, 1)),
            st.builds(lambda peer, tag: Step("recv", peer=peer, tag=tag), st.just(-1) | others, st.integers(0, 1)),
        )
        programs.append(draw(st.lists(step, max_size=4)))
    return programs, groups


@st.composite
def correct_program(draw: st.DrawFn) -> tuple[Program, Groups]:
    """One list of operations, of which each rank does its part in order."""
    size = draw(st.integers(2, 5))
    groups = draw(groups_of(size))
    programs: list[list[Step]] = [[] for _ in range(size)]
    for _ in range(draw(st.integers(1, 8))):
        if draw(st.booleans()):
            name = draw(st.sampled_from(sorted(groups)))
            step = Step(draw(st.sampled_from(["c1", "c2"])), name)
            for rank in groups[name]:
                programs[rank].append(step)
        else:
            sender, receiver = draw(st.permutations(range(size)))[:2]
            tag = draw(st.integers(0, 1))
            programs[sender].append(Step("send", peer=receiver, tag=tag))
            programs[receiver].append(Step("recv", peer=sender, tag=tag))
    return programs, groups


@SETTINGS
@given(any_program(), st.lists(st.integers(0, 100), min_size=30, max_size=30))
def test_proven_exactly_when_nothing_can_end(program: tuple[Program, Groups], choices: list[int]) -> None:
    """A world that can go on must never be stopped, and one that cannot must not wait for its limit."""
    machine = Machine(*program)
    for _ in machine.run(iter(choices)):
        is_stuck = not machine.ready() and any(machine.step(rank) for rank in range(len(machine.programs)))
        analysis = analyse(machine.views(), LIMITS)
        assert analysis.is_proven == is_stuck
        story = tell(analysis)
        if is_stuck:
            assert story is not None
            assert story.is_proven
            assert not set(story.culprits) & set(story.victims)
            assert set(story.victims) <= set(analysis.waiting)


@SETTINGS
@given(correct_program(), st.lists(st.integers(0, 100), min_size=60, max_size=60), st.data())
def test_correct_program_is_never_stopped(
    program: tuple[Program, Groups], choices: list[int], data: st.DataObject
) -> None:
    """At no moment, and with no rank that is slower than the others or does something else in between."""
    machine = Machine(*program)
    for _ in machine.run(iter(choices)):
        views = machine.views()
        assert not analyse(views, LIMITS).is_proven
        # Some ranks have ended an operation and not begun the next one.
        late = data.draw(st.sets(st.integers(0, len(views) - 1)))
        views = [
            replace(view, ended="", ledger=replace(view.ledger, waits=()))
            if view.rank in late and view.ledger
            else view
            for view in views
        ]
        assert not analyse(views, LIMITS).is_proven
    assert all(machine.step(rank) is None for rank in range(len(machine.programs)))


@SETTINGS
@given(any_program(), st.lists(st.integers(0, 100), min_size=30, max_size=30), st.data())
def test_unknown_handles_never_stop_a_world_that_can_go_on(
    program: tuple[Program, Groups], choices: list[int], data: st.DataObject
) -> None:
    """A wait by a handle names no peer: it may prove less, and never more."""
    machine = Machine(*program)
    for _ in machine.run(iter(choices)):
        unknown = data.draw(st.sets(st.integers(0, len(machine.programs) - 1)))
        views = [
            replace(view, ledger=replace(view.ledger, waits=(replace(view.ledger.waits[0], kind=WaitKind.HANDLE),)))
            if view.rank in unknown
            and (step := machine.step(view.rank))
            and step.operation in ("send", "recv")
            and view.ledger
            else view
            for view in machine.views()
        ]
        if machine.ready():
            assert not analyse(views, LIMITS).is_proven


def _two(wait: Wait | None = None, *, calls: Sequence[Call] = (call("0", 1),)) -> list[RankView]:
    """Rank 0 waits for rank 1, which has ended its test."""
    groups = {"0": (0, 1)}
    wait = wait or Wait(WaitKind.COLLECTIVE, "all_reduce", "0")
    return [view(0, calls, groups, wait), view(1, (), groups, None)]


def _changed(views: list[RankView], rank: int, **changes: object) -> list[RankView]:
    ledger = views[rank].ledger
    assert ledger is not None
    return [
        replace(view, ledger=replace(ledger, **changes)) if view.rank == rank else view  # type: ignore[arg-type]
        for view in views
    ]


STORE = Wait(WaitKind.STORE, "get", keys="'k'", limit_ms=300_000)
RECEIVE = Wait(WaitKind.RECEIVE, "recv", "0", 1, limit_ms=LIMIT_MS)
MEETING = Wait(WaitKind.MEETING, "new_group", "1", limit_ms=LIMIT_MS, ranks=(0, 1))
MONITORED = Wait(WaitKind.MONITORED, "monitored_barrier", "0", limit_ms=1_800_000)
SOME = Wait(WaitKind.SOME_COLLECTIVE, "wait")
HANDLE = Wait(WaitKind.HANDLE, "wait of a send or a receive", limit_ms=LIMIT_MS)


@pytest.mark.parametrize("wait", [None, STORE, RECEIVE, MEETING, MONITORED, SOME, HANDLE])
def test_wait_for_a_rank_that_has_ended_is_proven(wait: Wait | None) -> None:
    """The plain case of each kind; what follows takes one reason away at a time."""
    assert analyse(_two(wait), LIMITS).is_proven


@pytest.mark.parametrize(
    ("views", "why"),
    [
        (_changed(_two(), 1, others=("another thread (t)",)), "has another thread (t)"),
        (_changed(_two(), 0, others=("an RPC agent",)), "has an RPC agent"),
        ([_two()[0], replace(_two()[1], ledger=None)], "did not tell its ledger"),
        ([_two()[0], replace(_two()[1], busy="uses the CPU")], "uses the CPU"),
        (
            _changed(_two(), 0, is_recording=False),
            "waits without a record of its collectives (TORCH_FR_BUFFER_SIZE=0, or torch before 2.12)",
        ),
        (_changed(_two(), 0, groups=()), "waits in a group that is not known (0)"),
        (_changed(_two(), 0, waits=()), "has not come yet"),
        (_two(calls=[call("0", 1, is_done=True)]), "waits for a call that has just ended"),
        (_two(calls=[call("0", 1, limit_ms=2000)]), "waits with a limit of the test's own"),
        (_two(replace(HANDLE, limit_ms=0)), "waits with a limit of the test's own"),
        (_two(replace(STORE, limit_ms=2000)), "waits with a limit of the test's own"),
        (_two(replace(RECEIVE, limit_ms=0)), "waits with a limit of the test's own"),
        (_two(replace(RECEIVE, group="9")), "waits in a group that is not known"),
        (_two(calls=[replace(call("0", 1), backend="nccl")]), "waits in a group that is not known (0)"),
    ],
)
def test_not_proven(views: list[RankView], why: str) -> None:
    """Each is a way in which a world that looks locked up goes on; a stop would fail a correct test."""
    analysis = analyse(views, LIMITS)
    assert not analysis.is_proven
    assert why in analysis.free.values()


@pytest.mark.parametrize(
    "views",
    [
        # Rank 1 may have begun the call.
        _changed(_two(), 1, is_complete=False),
        _changed(_two(), 1, is_recording=False),
        _changed(_two(), 1, groups=(Group("0", (1, 0)),)),
        _changed(_two(), 1, calls=(replace(call("0", 1), generation=1),)),
        _changed(_two(), 1, last={"0": 1}),
        # One of two handles can still end.
        [
            view(0, [call("0", 1), call("1", 1)], {"0": (0, 1), "1": (0, 1)}, SOME),
            view(1, [call("1", 1)], {"0": (0, 1), "1": (0, 1)}, None),
        ],
    ],
)
def test_call_that_may_end_proves_nothing(views: list[RankView]) -> None:
    """A call that all members may have begun is on its way, however long that takes."""
    assert not analyse(views, LIMITS).is_proven


def _story(views: list[RankView]) -> HangStory:
    story = tell(analyse(views, LIMITS))
    assert story is not None
    return story


def test_story_names_who_never_came() -> None:
    """The rank that had ended is to blame, whatever the others ran into."""
    story = _story(_two())
    assert story.headline == (
        "rank 1 ended the test; rank 0 waits for it in all_reduce (c1) #1 of the default group (test_f.py:6)"
    )
    assert (story.culprits, story.victims) == ((1,), (0,))
    assert story.lines == (
        "Ledger of rank 0: waits in all_reduce (c1) #1 of the default group [[3]] Float (test_f.py:6).",
        "Ledger of rank 1: ended the test.",
    )


def test_story_names_calls_that_differ() -> None:
    """The reader must see both calls, and the rank that is alone with its own."""
    groups = {"0": (0, 1, 2)}
    wait = Wait(WaitKind.COLLECTIVE, "c1", "0")
    views = [view(rank, [call("0", 4, "c2" if rank == 1 else "c1")], groups, wait) for rank in range(3)]
    story = _story(views)
    assert story.is_proven
    assert story.headline == (
        "the ranks disagree about call #4 of the default group: "
        "rank 1 calls c2 (test_f.py:6), ranks 0, 2 call c1 (test_f.py:6)"
    )
    assert (story.culprits, story.victims) == ((1,), (0, 2))


@pytest.mark.parametrize(
    ("operation", "sizes", "dtypes", "is_proven"),
    [
        ("all_reduce", "[[4]]", "Float", True),
        ("all_reduce", "[[3]]", "Double", True),
        ("all_reduce", "[[1, 3]]", "Float", False),
        ("all_reduce", "[[3", "Float", False),
        ("scatter", "[]", "Float", False),
        ("all_to_all", "[[4]]", "Float", False),
    ],
)
def test_inputs_that_must_agree(operation: str, sizes: str, dtypes: str, is_proven: bool) -> None:
    """Inputs that differ where they must not are no correct program; others can be."""
    groups = {"0": (0, 1)}
    wait = Wait(WaitKind.COLLECTIVE, operation, "0")
    views = [
        view(0, [call("0", 1, operation)], groups, wait),
        view(1, [replace(call("0", 1, operation), sizes=sizes, dtypes=dtypes)], groups, wait),
    ]
    assert analyse(views, LIMITS).is_proven == is_proven
    if is_proven:
        assert f"rank 1 calls {operation} of {sizes} {dtypes} (test_f.py:6)" in _story(views).headline


def test_story_of_a_cycle_blames_no_rank() -> None:
    """Each does what it should if the other had begun."""
    groups = {"0": (0, 1)}
    views = [view(rank, [], groups, replace(RECEIVE, peer=1 - rank)) for rank in range(2)]
    story = _story(views)
    assert story.headline == (
        "ranks 0, 1 wait for each other: rank 0 in recv from rank 1 (test_f.py:6); "
        "rank 1 in recv from rank 0 (test_f.py:6)"
    )
    assert story.culprits == ()


def test_ledger_corrects_the_culprit() -> None:
    """The first error is that of the rank whose limit ran out first, which does not make it the culprit."""
    late = RankOutcome(0, Kind.RAISED, 5.0, summary="RuntimeError: Timed out waiting", collateral="late")
    outcomes = [late, RankOutcome(1, Kind.PASSED)]
    found = blame_by_ledger(verdict(outcomes, world_size=2), outcomes, _story(_two()))
    assert (found.cause, found.culprit, found.victims) == (Cause.HANG, 1, (0,))
    assert found.reason.startswith("rank 1 ended the test; rank 0 waits for it")


@pytest.mark.parametrize(
    "outcomes",
    [
        [RankOutcome(0, Kind.RAISED, 5.0, summary="ValueError: own"), RankOutcome(1, Kind.PASSED)],
        [RankOutcome(0, Kind.SIGNALLED, 5.0, signal=9), RankOutcome(1, Kind.PASSED)],
        # Another rank than the one that waited.
        [RankOutcome(0, Kind.PASSED), RankOutcome(1, Kind.RAISED, 5.0, summary="RuntimeError: t", collateral="late")],
    ],
)
def test_ledger_never_hides_a_failure(outcomes: list[RankOutcome]) -> None:
    """A story of an earlier moment must not replace an error that a rank has really raised."""
    found = verdict(outcomes, world_size=2)
    assert blame_by_ledger(found, outcomes, _story(_two())) == found


def test_pass_stays_a_pass() -> None:
    """Ranks wait for each other all the time."""
    outcomes = [RankOutcome(0, Kind.PASSED), RankOutcome(1, Kind.PASSED)]
    assert blame_by_ledger(Verdict(Status.PASSED), outcomes, _story(_two())) == Verdict(Status.PASSED)


def test_stuck_ranks_were_not_at_the_deadline() -> None:
    """The report must not speak of a deadline that never came."""
    outcomes = [RankOutcome(0, Kind.HUNG, operation="all_reduce"), RankOutcome(1, Kind.PASSED)]
    marked = mark_stuck(outcomes, _story(_two()))
    assert marked[0].describe() == "was still in all_reduce when no rank could go on any more"
    assert marked[1] == outcomes[1]
    assert mark_stuck(outcomes, None)[0].describe() == "was still in all_reduce at the deadline"
