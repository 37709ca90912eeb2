"""Random programs of collectives, correct ones and the same with one fault; they run on the ranks of a real world.

Every rank makes the same list of steps from a seed and does its part of each, in order. So the rank that is furthest
behind never waits for a step that another rank has yet to reach, and the program ends. Sums are checked, so that a
program that is not correct fails.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from dist_testing import World

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
_COUNT = 3
_Wait = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a program."""

    kind: str  # a collective, or "send", "ring", "key", "pause", "compute"
    ranks: tuple[int, ...]  # that take part: of a send sender and receiver, of a key first the rank that sets it
    group: int = -1  # number of the group of a collective, from 0; -1 for the default group
    wait_after: int = 0  # how many steps later each rank waits for an asynchronous collective or send; 0: at once
    tag: int = 0  # of a send; of a key its number
    seconds: float = 0.0  # of a pause
    # Elements of each tensor: equal ones, so that a call that meets a later one is no error of its own.
    count: int = 3
    dtype: str = "float32"
    reduction: str = "SUM"
    root: int = 0  # index in `ranks`


@dataclass(frozen=True, slots=True)
class Fault:
    """What one rank does wrong."""

    kind: str  # one of `FAULTS` or `MIXED_FAULTS`
    rank: int
    at: int  # index of the step


@dataclass(frozen=True, slots=True)
class Program:
    """What the ranks of a world do."""

    seed: int  # what it was made from
    size: int  # number of ranks
    groups: tuple[tuple[int, ...], ...]  # members of the groups beside the default group
    steps: tuple[Step, ...]
    fault: Fault | None = None  # None for a correct program

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
    """Make a correct program; the seed decides everything.

    `is_quick` leaves out long pauses, handles and keys of a store (only the line of the test shows that it waits for
    one), and objects (gloo aborts a process that gets more than it expects).
    """
    chance = random.Random(seed)
    size = chance.randint(2, 5)
    ranks = tuple(range(size))
    groups = tuple(tuple(sorted(chance.sample(ranks, chance.randint(2, size)))) for _ in range(chance.randint(0, 2)))
    steps = [_step(chance, ranks, groups, number, has_handles=not is_quick) for number in range(chance.randint(3, 12))]
    if not is_quick:
        for _ in range(chance.choice((0, 1, 1, 2))):
            steps.insert(chance.randint(0, len(steps)), _pause(chance, ranks))
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
    """Plant a fault into a program that was made with `is_quick`; None if it has no place for this kind of fault."""
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


def run_correct(world: World, arguments: dict[str, Any]) -> None:
    """Run the programs of the seeds in `arguments` whose size is that of the world."""
    for seed in arguments["seeds"]:
        print(f"program {seed}", flush=True)
        _Runner(world, program(seed)).run()


def run_faulty(world: World, arguments: dict[str, Any]) -> None:
    """Run the program of the seed in `arguments`, with the fault in it."""
    faulty = with_fault(program(arguments["seed"], is_quick=True), arguments["fault"])
    assert faulty is not None
    _Runner(world, faulty).run()


class _Runner:
    def __init__(self, world: World, steps: Program) -> None:
        self._world = world
        self._program = steps
        # A fault of this kind is one only if somebody looks at the data.
        self._is_checked = steps.fault is None or steps.fault.kind in MIXED_FAULTS
        # Steps until each rank waits, and how.
        self._waits: list[tuple[int, _Wait]] = []

    def run(self) -> None:
        groups = [dist.new_group(list(members)) for members in self._program.groups]
        for step in self._program.steps_of(self._world.rank):
            self._wait_due()
            group = groups[step.group] if step.group >= 0 else dist.group.WORLD
            if wait := self._begin(step, group):
                self._waits.append((step.wait_after, wait))
        self._waits = [(0, wait) for _, wait in self._waits]
        self._wait_due()
        if self._program.fault is None:
            for members, group in zip(self._program.groups, groups, strict=True):
                if self._world.rank in members:
                    dist.destroy_process_group(group)

    def _wait_due(self) -> None:
        due = [wait for left, wait in self._waits if left <= 0]
        self._waits = [(left - 1, wait) for left, wait in self._waits if left > 0]
        for wait in due:
            wait()

    def _begin(self, step: Step, group: Any) -> _Wait | None:
        """Do this rank's part of a step; return what is left to wait for."""
        match step.kind:
            case "pause":
                time.sleep(step.seconds)
            case "compute":
                end_s = time.monotonic() + step.seconds
                while time.monotonic() < end_s:
                    torch.ones(100).sum()
            case "send":
                return self._send(step)
            case "ring":
                self._exchange()
            case "key":
                self._share(step)
            case "raise":
                raise ValueError("planted")
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case _:
                return self._collective(step, group)
        return None

    def _collective(self, step: Step, group: Any) -> _Wait | None:
        rank, size, root = self._world.rank, len(step.ranks), step.ranks[step.root]
        dtype, reduction = getattr(torch, step.dtype), getattr(dist.ReduceOp, step.reduction)
        given = torch.full((step.count,), float(rank), dtype=dtype)
        several = [torch.zeros(step.count, dtype=dtype) for _ in range(size)]
        of_root = several if rank == root else None
        is_async = step.wait_after > 0
        work: Any = None
        match step.kind:
            case "barrier":
                dist.barrier(group=group)
            case "all_gather_object":
                found: list[Any] = [None] * size
                dist.all_gather_object(found, rank, group=group)
                assert not self._is_checked or found == list(step.ranks)
            case "all_reduce":
                work = dist.all_reduce(given, reduction, group=group, async_op=is_async)
            case "all_gather":
                work = dist.all_gather(several, given, group=group, async_op=is_async)
            case "broadcast":
                work = dist.broadcast(given, root, group=group, async_op=is_async)
            case "reduce":
                work = dist.reduce(given, root, reduction, group=group, async_op=is_async)
            case "gather":
                work = dist.gather(given, of_root, root, group=group, async_op=is_async)
            case "scatter":
                work = dist.scatter(given, of_root, root, group=group, async_op=is_async)

        def end() -> None:
            if work is not None:
                work.wait()
            if self._is_checked:
                self._check(step, given, several)

        if is_async:
            return end
        end()
        return None

    def _check(self, step: Step, given: torch.Tensor, several: list[torch.Tensor]) -> None:
        rank, root = self._world.rank, step.ranks[step.root]
        if step.kind == "all_reduce" or (step.kind == "reduce" and rank == root):
            expected = float(sum(step.ranks) if step.reduction == "SUM" else min(step.ranks))
            assert given.tolist() == [expected] * step.count, (step, given)
        elif step.kind in ("broadcast", "scatter"):
            # A scatter sends zeros.
            expected = float(root) if step.kind == "broadcast" else 0.0
            assert given.tolist() == [expected] * step.count, (step, given)
        elif step.kind == "all_gather" or (step.kind == "gather" and rank == root):
            found = [tensor.tolist() for tensor in several]
            assert found == [[float(other)] * step.count for other in step.ranks], (step, found)

    def _send(self, step: Step) -> _Wait | None:
        sender, receiver = step.ranks
        tensor = torch.full((step.count,), float(sender))
        is_sender = self._world.rank == sender
        if step.wait_after == 0:
            if is_sender:
                dist.send(tensor, receiver, tag=step.tag)
            else:
                dist.recv(tensor, sender, tag=step.tag)
            return None
        begin = dist.isend if is_sender else dist.irecv
        work = begin(tensor, receiver if is_sender else sender, tag=step.tag)
        assert work is not None
        return work.wait

    def _exchange(self) -> None:
        rank, size = self._world.rank, self._world.size
        got = torch.zeros(_COUNT)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, torch.full((_COUNT,), float(rank)), (rank + 1) % size),
                dist.P2POp(dist.irecv, got, (rank - 1) % size),
            ]
        )
        for work in works:
            work.wait()
        assert got[0] == (rank - 1) % size

    def _share(self, step: Step) -> None:
        key = f"{self._program.seed}/{step.tag}"
        if self._world.rank == step.ranks[0]:
            self._world.store.set(key, "1")
        else:
            self._world.store.get(key)
