"""Faults that a test causes on the ranks of its own world: they happen, they are expected or told, and nothing else."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from dist_testing import World
from dist_testing.core.engine.engine import Engine
from dist_testing.core.events.event import WorldEnded
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.outcomes import Cause, Kind, Status
from dist_testing.core.ground.procfs import status_of
from dist_testing.core.ground.record import LinkEnds
from dist_testing.core.process import wire
from dist_testing.core.process.rank_messages import RANK_MESSAGES, Extra
from dist_testing.core.rank.reporter import RunnerClient
from dist_testing.nodes.faults import FAULT_REQUESTS, LinkFault, SignalFault, ask
from dist_testing.nodes.links import CUT
from dist_testing.nodes.planned import PlannedFault
from tests.support.worlds import engine_for, run

# Longer than two looks at the ledgers take. Seconds.
_LONG_S = 2.5
# A proof that does not come ends the whole test.
_LIMIT_S = 300.0
_Arguments = dict[str, Any]


def _kills(world: World, _: _Arguments) -> None:
    # The store outlives all ranks but rank 0.
    world.barrier()
    if world.rank == 0:
        world.faults.kill(2)
        with pytest.raises(UsageError, match="kill of rank 2, which has ended"):
            world.faults.kill(2)
        world.store.set("dead", "1")
    world.store.get("dead" if world.rank < 2 else "never")


def _kills_itself(world: World, _: _Arguments) -> None:
    world.barrier()
    if world.rank == 1:
        world.faults.kill(1)
        raise AssertionError("went on")


def _stops_for_a_while(world: World, _: _Arguments) -> None:
    if world.rank == 1:
        world.store.set("pid", str(os.getpid()))
    if world.rank == 0:
        pid = int(world.store.get("pid"))
        world.faults.stop(1)
        assert status_of(pid, "State").startswith("T")
        time.sleep(_LONG_S)
        world.faults.cont(1)
        assert not status_of(pid, "State").startswith("T")
    dist.barrier()


def _stops_for_good(world: World, _: _Arguments) -> None:
    world.barrier()
    if world.rank == 1:
        world.faults.stop(1)
        raise AssertionError("went on")


def _does_not_stop(world: World, _: _Arguments) -> None:
    world.barrier()


def _waits_for_a_stopped_one(world: World, _: _Arguments) -> None:
    world.barrier()
    if world.rank == 0:
        world.faults.stop(1)
    dist.barrier()


def _is_late(world: World, _: _Arguments) -> None:
    if world.rank == 0:
        world.faults.delay(1, "step", _LONG_S)
    # Rank 1 may leave this barrier first, and its delay then begins before this rank goes on.
    began_s = time.monotonic()
    world.barrier("before")
    world.barrier("step")
    took_s = time.monotonic() - began_s
    assert took_s >= _LONG_S or world.rank > 1
    # It is late once.
    world.barrier("step")
    assert not world.store.check(["dist_testing/delay/1/step"])


def _ends_before_a_delay(world: World, _: _Arguments) -> None:
    world.faults.delay(1, "step", 3600)


def _meets_at_the_barrier(world: World, _: _Arguments) -> None:
    world.barrier("step")


def _asks_for_strangers(world: World, _: _Arguments) -> None:
    """Ask past the checks on the rank, as test code that goes wrong could."""
    if world.rank == 0:
        assert isinstance(world._runner, RunnerClient)
        with pytest.raises(UsageError, match=r"kill of rank 7 in a world of 3 ranks\.\n.*\n.*from 0"):
            ask(world._runner, SignalFault("kill", (7,)))
        with pytest.raises(UsageError, match="in a world of 3 ranks"):
            ask(world._runner, SignalFault("stop", ()))
        with pytest.raises(UsageError, match="links between nodes 0->1: cut in a world of 3 ranks"):
            ask(world._runner, LinkFault((LinkEnds(0, 1),), CUT))
    world.barrier()


def _breaks_a_pool(world: World, _: _Arguments) -> None:
    if world.rank == 0:
        with pytest.raises(UsageError, match=r'worker pool\.\n.*\n.*isolation="fork"'):
            world.faults.kill(1)
    world.barrier()


def _waits_for_ever(world: World, _: _Arguments) -> None:
    dist.all_reduce(torch.ones(1)) if world.rank < 2 else world.store.get("never")


def _meets_late(world: World, _: _Arguments) -> None:
    if world.rank == 0:
        time.sleep(2 * _LONG_S)
    dist.barrier()


def _ends_late(world: World, _: _Arguments) -> None:
    if world.rank == 2:
        world.store.get("never")
    time.sleep(1)


def _asks_without_end(world: World, _: _Arguments) -> None:
    if world.rank == 0:
        assert isinstance(world._runner, RunnerClient)
        request = FAULT_REQUESTS.to_wire(SignalFault("cont", (1,))).decode()
        for _number in range(200_000):
            wire.send(world._runner._channel, RANK_MESSAGES, Extra("faults", request))
    world.store.get("never")


def _asks_from_a_fork(world: World, _: _Arguments) -> None:
    if world.rank == 0:
        pid = os.fork()
        if pid == 0:
            try:
                world.faults.stop(1)
            except UsageError as error:
                os._exit(3 if "forked" in str(error) else 4)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    world.barrier()


def _asks_from_threads(world: World, _: _Arguments) -> None:
    def stop_and_go() -> None:
        for _again in range(5):
            world.faults.stop(1)
            world.faults.cont(1)

    if world.rank == 0:
        threads = [threading.Thread(target=stop_and_go) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    world.barrier()
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == world.size


def _loses_the_store(world: World, _: _Arguments) -> None:
    """A store that another rank serves: its end is seen at once, because the kernel of this machine closes it."""
    if world.rank == 1:
        server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        world.store.set("port", str(server.port))
        world.store.get("never")
    elif world.rank == 0:
        port = int(world.store.get("port"))
        client = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=60))
        world.faults.kill(1)
        with pytest.raises(dist.DistNetworkError):
            client.get("anything")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """One engine for all cases. At its end nothing may be left of them."""
    functions = {name: value for name, value in globals().items() if name.startswith("_") and callable(value)}
    with engine_for(functions) as engine:
        yield engine


def _case(engine: Engine, function: str, **more: Any) -> CaseResult:
    return run(engine, function, world_size=3, timeout_s=more.pop("timeout_s", _LIMIT_S), **more)


def _passed(result: CaseResult) -> bool:
    assert result.verdict.status is Status.PASSED, (result.verdict, [outcome.text for outcome in result.outcomes])
    return True


@pytest.mark.parametrize(
    ("function", "exits"),
    [
        ("_kills", {2: -9}),
        ("_kills_itself", {1: -9}),
        ("_loses_the_store", {1: -9}),
        ("_stops_for_a_while", {}),
        ("_stops_for_good", {1: -19}),
        ("_is_late", {}),
        ("_asks_for_strangers", {}),
        ("_asks_from_a_fork", {}),
        ("_asks_from_threads", {}),
    ],
)
def test_a_fault_that_the_case_expects_is_no_failure(engine: Engine, function: str, exits: dict[int, int]) -> None:
    """If this fails, a test of a fault cannot say what must happen, or a wait for a stopped rank is called a hang."""
    assert _passed(_case(engine, function, expected_exits=exits))


def test_a_kill_that_the_case_does_not_expect_fails_it_and_is_told(engine: Engine) -> None:
    """If this fails, a rank that dies by mistake is no failure, or its killer stays unknown."""
    result = _case(engine, "_kills")
    assert (result.verdict.cause, result.verdict.culprit) == (Cause.CRASH, 2)
    assert any("on purpose, by rank 0" in note and "kill of rank 2" in note for note in result.notes), result.notes


def test_faults_that_have_happened_are_in_the_record() -> None:
    """If this fails, who reads the events of a run sees a rank die, and not that its test has killed it."""
    told: list[WorldEnded] = []
    functions = {"stops": _stops_for_a_while, "kills": _kills, "waits": _waits_for_ever, "asks": _asks_for_strangers}
    with engine_for(functions) as engine:
        engine.events.subscribe(told.append, WorldEnded, name="the test")
        assert _passed(_case(engine, "stops"))
        # The second kill, of a rank that is dead, is refused.
        assert _passed(_case(engine, "kills", expected_exits={2: -9}))
        planned = _plan((0.1, "kill(2)"))
        _case(engine, "waits", settings=planned, expected_exits={0: 0, 1: 0, 2: -9})
        assert _passed(_case(engine, "asks"))
    assert [[(fault.action, fault.ranks, fault.by) for fault in event.record.faults] for event in told] == [
        [("stop", (1,), 0), ("cont", (1,), 0)],
        [("kill", (2,), 0)],
        [("kill", (2,), None)],
        [],
    ]
    # On the clock of the record, which begins with the case.
    assert all(0 < fault.asked_s <= fault.at_s < 60 for event in told for fault in event.record.faults)


def test_a_rank_that_should_be_stopped_and_is_not_fails_the_case(engine: Engine) -> None:
    """If this fails, a test whose fault never happened passes."""
    result = _case(engine, "_does_not_stop", expected_exits={1: -19})
    assert (result.verdict.status, result.verdict.culprit) == (Status.FAILED, 1)
    assert "expected to end by SIGSTOP (19)" in result.outcomes[1].summary


def test_a_stopped_rank_that_others_wait_for_ends_at_the_limit(engine: Engine) -> None:
    """If this fails, a stop that the case does not expect passes, or counts as a proven deadlock, which it is not."""
    result = _case(engine, "_waits_for_a_stopped_one", timeout_s=6.0)
    assert result.verdict.cause is Cause.HANG, result.verdict
    assert not result.verdict.is_proven
    assert result.outcomes[1].kind in (Kind.HUNG, Kind.STOPPED)
    assert "T (stopped)" in result.stacks[1]


def test_a_rank_that_reads_no_answers_does_not_stop_the_runner(engine: Engine) -> None:
    """If this fails, a loop of requests blocks the runner, and with it every limit of the run."""
    result = _case(engine, "_asks_without_end")
    assert result.outcomes[0].kind is Kind.UNREADABLE, result.outcomes
    assert "does not read the answers" in result.outcomes[0].summary
    assert any("further faults" in note for note in result.notes), result.notes


def test_a_pool_keeps_its_ranks_whole(engine: Engine) -> None:
    """If this fails, the case after a fault waits for a rank that is dead, or a pool has no faults at all."""
    assert _passed(_case(engine, "_breaks_a_pool", isolation="pool", pool="a"))
    assert _passed(_case(engine, "_stops_for_a_while", isolation="pool", pool="a"))
    assert _passed(_case(engine, "_asks_from_threads", isolation="pool", pool="a"))
    assert _passed(_case(engine, "_ends_before_a_delay", isolation="pool", pool="a"))
    # Without a wait for the delay of the case before.
    assert _passed(_case(engine, "_meets_at_the_barrier", isolation="pool", pool="a"))
    assert engine.end_pool() == ""


def _plan(*faults: tuple[float, str]) -> dict[str, object]:
    return {"faults": tuple(PlannedFault(*fault) for fault in faults)}


def test_planned_faults_happen_without_the_ranks(engine: Engine) -> None:
    """If this fails, a program, which has no `world`, cannot be tested under a fault."""
    kill = _case(engine, "_waits_for_ever", settings=_plan((0.1, "kill(2)")), expected_exits={0: 0, 1: 0, 2: -9})
    assert {outcome.kind for outcome in kill.outcomes} == {Kind.RAISED, Kind.PASSED}
    assert any("by the plan" in note and "kill of rank 2" in note for note in kill.notes), kill.notes
    # It waits longer than a proof takes, for a fault that lets it go on.
    assert _passed(_case(engine, "_meets_late", settings=_plan((0.1, "stop(1)"), (_LONG_S, "cont(1)"))))


def test_a_planned_fault_that_never_happens_fails_the_case(engine: Engine) -> None:
    """If this fails, a test whose fault came too late, or for a rank that had ended, passes without it."""
    late = _case(engine, "_does_not_stop", settings=_plan((600, "stop(1)")))
    assert late.verdict.status is Status.FAILED
    assert late.verdict.reason == "planned faults did not happen: stop(1) after 600 s: the case ended before"
    gone = _case(engine, "_ends_late", settings=_plan((0.1, "kill(2)"), (0.2, "stop(2)")), expected_exits={2: -9})
    assert "stop of rank 2, which has ended" in gone.verdict.reason, gone.verdict


def test_a_request_with_a_value_out_of_range_is_no_message() -> None:
    """If this fails, a rank can name any process by a number that the runner does not check."""
    with pytest.raises(Exception, match=r"request for a fault: .*expected int from 0 to"):
        FAULT_REQUESTS.from_wire(FAULT_REQUESTS.to_wire(SignalFault("kill", (-1,))))
