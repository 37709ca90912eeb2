"""Random programs of collectives: correct ones, and the same with one fault.

Every rank makes the same list of steps from a seed and does its part of each, in order. So the rank that is furthest
behind never waits for a step that another rank has yet to reach, and the program ends. Sums are checked, so that a
program that is not correct fails.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

# Collectives after which each member knows that all others have begun them.
MEETINGS = ("barrier", "all_reduce", "all_gather", "all_gather_object")
# A member may leave these before another one has begun them.
ROOTED = ("broadcast", "reduce", "gather", "scatter")
# With these no rank can go on.
FAULTS = ("leave", "skip", "other operation", "no send", "other tag", "swap")
# With these a rank can fail, its peer, or all of them; or they wait.
MIXED_FAULTS = ("other size", "other type", "other reduction", "other root", "other peer", "raise", "crash")
_WITH_EQUAL_INPUTS = ("all_reduce", "broadcast", "reduce", "all_gather", "gather")
_SHORT_S = (0.0, 0.002, 0.02)
# Longer than the runner needs to prove a hang. Seconds.
_LONG_S = 1.4


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a program.

    Attributes:
        kind: A collective, or "send", "ring", "key", "pause", "compute", "limited", "thread".
        ranks: The ranks that take part: of a send the sender and the receiver, of a key first the rank that sets it.
        group: Number of the group of a collective, from 0; -1 for the default group.
        wait_after: For an asynchronous collective or send, how many steps later each rank waits for it; 0: at once.
        tag: Of a send; of a key its number.
        seconds: Of a pause.
        count: Elements of each tensor.
        dtype: torch's name of their type.
        reduction: torch's name of how a collective reduces.
        root: Index of the root in `ranks`.
    """

    kind: str
    ranks: tuple[int, ...]
    group: int = -1
    wait_after: int = 0
    tag: int = 0
    seconds: float = 0.0
    # Equal tensors, so that a call that meets a later one is no error of its own.
    count: int = 3
    dtype: str = "float32"
    reduction: str = "SUM"
    root: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """What one rank does wrong.

    Attributes:
        kind: One of `FAULTS` or `MIXED_FAULTS`.
        rank: Which rank.
        at: Index of the step.
    """

    kind: str
    rank: int
    at: int


@dataclass(frozen=True, slots=True)
class Program:
    """What the ranks of a world do.

    Attributes:
        seed: What it was made from.
        size: Number of ranks.
        groups: Members of the groups beside the default group.
        steps: In order.
        fault: None for a correct program.
    """

    seed: int
    size: int
    groups: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]
    fault: Fault | None = None

    def steps_of(self, rank: int) -> Iterator[Step]:
        """Yield what a rank does."""
        fault = self.fault if self.fault is not None and self.fault.rank == rank else None
        steps = [(index, step) for index, step in enumerate(self.steps) if rank in step.ranks]
        if fault is not None and fault.kind == "swap":
            place = next(place for place, (index, _) in enumerate(steps) if index == fault.at)
            steps[place : place + 2] = [(-1, steps[place + 1][1]), (-1, steps[place][1])]
        for index, step in steps:
            if fault is None or index != fault.at:
                yield step
            elif fault.kind == "leave":
                return
            elif fault.kind == "other operation":
                yield replace(step, kind="barrier" if step.kind != "barrier" else "all_reduce")
            elif fault.kind == "other tag":
                yield replace(step, tag=step.tag + 1000)
            elif fault.kind in MIXED_FAULTS:
                yield _changed(step, fault, self.size)


def _changed(step: Step, fault: Fault, size: int) -> Step:
    match fault.kind:
        case "other size":
            return replace(step, count=step.count + (1 if fault.at % 2 else -1))
        case "other type":
            return replace(step, dtype="float64" if step.dtype == "float32" else "float32")
        case "other reduction":
            return replace(step, reduction="MIN" if step.reduction == "SUM" else "SUM")
        case "other root":
            return replace(step, root=(step.root + 1) % len(step.ranks))
        case "other peer":
            sender, receiver = step.ranks
            other = next(rank for rank in range(size) if rank not in step.ranks)
            return replace(step, ranks=(sender, other) if fault.rank == sender else (other, receiver))
    return replace(step, kind=fault.kind)


def program(seed: int, *, is_quick: bool = False) -> Program:
    """Make a correct program.

    Args:
        seed: Decides everything.
        is_quick: Whether to leave out long pauses, what the ledger takes for a reason to wait, handles and keys of a
            store (only the line of the test shows that it waits for one), and objects (gloo aborts a process that gets
            more than it expects).
    """
    chance = random.Random(seed)
    size = chance.randint(2, 5)
    ranks = tuple(range(size))
    groups = tuple(tuple(sorted(chance.sample(ranks, chance.randint(2, size)))) for _ in range(chance.randint(0, 2)))
    steps = [_step(chance, ranks, groups, number, has_handles=not is_quick) for number in range(chance.randint(3, 12))]
    if not is_quick:
        for _ in range(chance.choice((0, 1, 1, 2))):
            steps.insert(chance.randint(0, len(steps)), _pause(chance, ranks))
        if chance.random() < 0.25:
            steps.append(Step(chance.choice(("limited", "thread", "thread")), ranks))
    # So that a group has as many calls on each of its members, or a rank waits.
    ends = [Step("barrier", members, number) for number, members in enumerate(groups)]
    return Program(seed, size, groups, (*steps, *ends, Step("barrier", ranks)))


def _step(
    chance: random.Random, ranks: tuple[int, ...], groups: Sequence[tuple[int, ...]], number: int, *, has_handles: bool
) -> Step:
    later = chance.choice((0, 0, 1, 3))
    match chance.randrange(10):
        case 0 | 1:
            after = later if has_handles else 0
            return Step("send", tuple(chance.sample(ranks, 2)), wait_after=after, tag=number)
        case 2 if has_handles:
            return Step("ring", ranks, tag=number)
        case 3 if has_handles:
            return Step("key", tuple(chance.sample(ranks, len(ranks))), tag=number)
        case 4:
            return Step("pause", (chance.choice(ranks),), seconds=chance.choice(_SHORT_S))
    group = chance.randint(-1, len(groups) - 1)
    kind = chance.choice((MEETINGS if has_handles else MEETINGS[:-1]) * 2 + ROOTED)
    can_wait = has_handles and kind not in ("all_gather_object", "barrier")
    members = ranks if group < 0 else groups[group]
    root = chance.randrange(len(members)) if kind in ROOTED else 0
    return Step(kind, members, group, later if can_wait else 0, root=root)


def _pause(chance: random.Random, ranks: tuple[int, ...]) -> Step:
    kind = "compute" if chance.random() < 0.2 else "pause"
    return Step(kind, (chance.choice(ranks),), seconds=chance.choice((*_SHORT_S, _LONG_S)))


def with_fault(correct: Program, kind: str) -> Program | None:
    """Plant a fault into a program.

    Args:
        correct: Made with `is_quick`.
        kind: One of `FAULTS` or `MIXED_FAULTS`.

    Returns:
        A program that is wrong; None if this program has no place for the fault.
    """
    chance = random.Random(correct.seed)
    places = [
        Fault(kind, rank, index)
        for index, step in enumerate(correct.steps)
        for rank in step.ranks
        if _is_wrong(correct, kind, rank, index)
    ]
    return replace(correct, fault=chance.choice(places)) if places else None


def _is_wrong(correct: Program, kind: str, rank: int, index: int) -> bool:
    step = correct.steps[index]
    is_meeting = step.kind in MEETINGS and len(step.ranks) > 1
    match kind:
        case "raise" | "crash":
            return True
        case "other size" | "other type":
            # gloo may abort the other one of two ranks, which then tells no calls.
            return step.kind in _WITH_EQUAL_INPUTS and len(step.ranks) > 2
        case "other reduction":
            return step.kind in ("all_reduce", "reduce") and len(step.ranks) > 1
        case "other root":
            return step.kind in ROOTED and len(step.ranks) > 1
        case "other peer":
            return step.kind == "send" and correct.size > 2
        case "leave":
            # The last step is a barrier of all ranks.
            return True
        case "skip" | "other operation":
            return is_meeting
        case "no send" | "other tag":
            return step.kind == "send" and rank == step.ranks[0]
    # Two calls of one rank in two groups, each of which another rank that is in both makes in the right order.
    own = [at for at, other in enumerate(correct.steps) if rank in other.ranks]
    following = own[own.index(index) + 1 :]
    if not (is_meeting and step.wait_after == 0 and following):
        return False
    other = correct.steps[following[0]]
    return (
        other.kind in MEETINGS
        and other.wait_after == 0
        and other.group != step.group
        and len(set(step.ranks) & set(other.ranks)) > 1
    )


def pause(seconds: float, *, computes: bool, compute: Callable[[], object]) -> None:
    """Sleep, or use the CPU."""
    end_s = time.monotonic() + seconds
    if not computes:
        time.sleep(seconds)
    while time.monotonic() < end_s:
        compute()
