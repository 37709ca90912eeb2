"""Small worlds without any library of communication: their states, as the ledgers of the ranks would tell them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from dist_testing.hang.analysis import RankView
from dist_testing.hang.ledger import Call, Ledger, Wait, WaitKind
from tests.support.results import LIMIT_MS

LIMITS = frozenset({LIMIT_MS})


@dataclass(frozen=True)
class Step:
    """One operation of one rank."""

    operation: str  # a collective's name, "send" or "recv"
    group: str = "0"  # of a collective
    peer: int = -1  # of a send or receive; -1 for a receive from any rank
    tag: int = 0  # of a send or receive


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
            if step is None:
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
            kinds = {"send": WaitKind.SEND, "recv": WaitKind.RECEIVE}
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
        groups=dict(groups),
        calls=tuple(calls),
        last={call.group: call.number for call in calls},
        waits=() if wait is None else (wait,),
        place="test_f.py:6",
        position=4,
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
