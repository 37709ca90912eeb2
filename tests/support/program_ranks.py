"""Runs random programs of collectives on the ranks of a real world."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dist_testing import World
from tests.support.random_programs import MIXED_FAULTS, Program, Step, pause, program, with_fault

_COUNT = 3
# Longer than the runner needs to prove a hang. Seconds.
_OWN_PAUSE_S = 1.4
# A limit that a program sets itself, in which all ranks must make a group, also on a busy machine. Seconds.
_OWN_LIMIT_S = 6.0
_Wait = Callable[[], object]


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
            case "pause" | "compute":
                pause(step.seconds, computes=step.kind == "compute", compute=lambda: torch.ones(100).sum())
            case "send":
                return self._send(step)
            case "ring":
                self._exchange()
            case "key":
                self._share(step)
            case "limited":
                self._run_into_limits()
            case "thread":
                self._leave_it_to_a_thread()
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

    def _run_into_limits(self) -> None:
        """Wait for what never comes, with limits of the program's own, while the others wait for that."""
        self._world.barrier()
        group = dist.new_group(timeout=timedelta(seconds=_OWN_LIMIT_S))
        key = f"{self._program.seed}/over"
        if self._world.rank == 0:
            with pytest.raises(dist.DistStoreError):
                self._world.store.wait(["never set"], timedelta(seconds=_OWN_PAUSE_S))
            work = dist.all_reduce(torch.ones(_COUNT), group=group, async_op=True)
            assert work is not None
            with pytest.raises(RuntimeError, match="imed out"):
                work.wait()
            self._world.store.set(key, "1")
        else:
            self._world.store.get(key)

    def _leave_it_to_a_thread(self) -> None:
        def send_later() -> None:
            pause(_OWN_PAUSE_S, computes=False, compute=lambda: None)
            dist.send(torch.ones(_COUNT), 1, tag=998)

        if self._world.rank == 0:
            thread = threading.Thread(target=send_later)
            thread.start()
            dist.recv(torch.ones(_COUNT), 1, tag=999)
            thread.join()
        elif self._world.rank == 1:
            dist.recv(torch.ones(_COUNT), 0, tag=998)
            dist.send(torch.ones(_COUNT), 0, tag=999)
