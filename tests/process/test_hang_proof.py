"""A world that has locked up is told at once, with the ranks that it comes from; and no correct world is stopped.

The limit of each case that must be proven is 300 seconds, so that a proof that does not come ends the whole test.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dist_testing import World
from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.report import failure_report
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.outcomes import Cause, Kind, Status
from dist_testing.hang.ledger import ANSWER_MARK, MAX_ANSWER_BYTES
from dist_testing.hang.ledger_thread import LedgerThread
from tests.support.cluster import needs_nodes
from tests.support.hang_kinds import KINDS, HangKind
from tests.support.results import entry
from tests.support.worlds import engine_for, run

_LIMIT_S = 300.0
# Longer than two looks at the ledgers take. Seconds.
_LONG_S = 2.5
_Arguments = dict[str, Any]


def _one_skips(world: World, _: _Arguments) -> None:
    if world.rank == 1:
        raise unittest.SkipTest("not today")
    dist.barrier()


def _sleeps(world: World, _: _Arguments) -> None:
    if world.rank == 1:
        time.sleep(_LONG_S)
    dist.barrier()


def _computes(world: World, _: _Arguments) -> None:
    end_s = time.monotonic() + _LONG_S
    while world.rank == 1 and time.monotonic() < end_s:
        torch.ones(100).sum()
    dist.barrier()


def _limits_its_waits(world: World, _: _Arguments) -> None:
    """A handle, a group and the store, each with a limit of the test's own."""
    group = dist.new_group(timeout=timedelta(seconds=_LONG_S))
    if world.rank == 0:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        assert work is not None
        with pytest.raises(RuntimeError, match="timed out"):
            work.wait(timedelta(seconds=_LONG_S))
        with pytest.raises(RuntimeError, match="Timed out"):
            dist.barrier(group=group)
        with pytest.raises(dist.DistStoreError):
            world.store.wait(["never set"], timedelta(seconds=_LONG_S))
        world.store.set("over", "1")
    else:
        world.store.get("over")


def _calls_from_a_thread(world: World, _: _Arguments) -> None:
    def send_later() -> None:
        time.sleep(_LONG_S)
        dist.send(torch.ones(3), 0, tag=1)

    if world.rank == 0:
        dist.recv(torch.ones(3), 1, tag=1)
        dist.send(torch.ones(3), 1, tag=2)
    elif world.rank == 1:
        thread = threading.Thread(target=send_later)
        thread.start()
        dist.recv(torch.ones(3), 0, tag=2)
        thread.join()


_SETS_LATER = """
import sys, time
from torch.distributed import TCPStore
time.sleep(1)
TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False).set("late", "1")
"""


def _has_a_child(world: World, _: _Arguments) -> None:
    if world.rank == 1:
        child = subprocess.Popen([sys.executable, "-c", _SETS_LATER, os.environ["MASTER_PORT"]])
    world.store.get("late")
    if world.rank == 1:
        assert child.wait() == 0


def _sends_before_it_waits(world: World, _: _Arguments) -> None:
    """A message that is on its way needs no rank any more."""
    if world.rank == 1:
        works = [dist.isend(torch.full((1 << 20,), 7.0), 0)]
        dist.barrier()
        for work in works:
            assert work is not None
            work.wait()
    elif world.rank == 0:
        time.sleep(_LONG_S)
        got = torch.zeros(1 << 20)
        dist.recv(got, 1)
        assert got[-1] == 7
        dist.barrier()
    else:
        dist.barrier()


def _is_stopped(world: World, _: _Arguments) -> None:
    if world.rank == 1:
        signal.raise_signal(signal.SIGSTOP)
    dist.barrier()


def _thread_count() -> int:
    return len(os.listdir("/proc/self/task"))


def _meets_no_helper(world: World, _: _Arguments) -> None:
    """The helper thread of the library must not be in the way of a test."""
    assert threading.enumerate() == [threading.main_thread()]
    if world.rank == 1:
        # Any thread that does not block it would take it, such as that of torch's store on rank 0; the default action
        # ends the process.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        os.kill(os.getpid(), signal.SIGUSR1)
        assert signal.sigtimedwait({signal.SIGUSR1}, 10) is not None
    before = _thread_count()
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    helper = LedgerThread(far.fileno())
    assert _thread_count() == before + 1
    helper.step_aside()
    assert _thread_count() == before
    helper.resume()
    near.send(b"7")
    assert near.recv(MAX_ANSWER_BYTES).startswith(ANSWER_MARK + b"7{")
    pid = os.fork()
    if pid == 0:
        os._exit(0 if _thread_count() == 1 else 9)
    assert os.waitpid(pid, 0)[1] == 0
    assert _thread_count() == before + 1


def _forks_and_hangs(world: World, _: _Arguments) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    if world.rank != 1:
        world.barrier()


def _is_ended_by_nccl(world: World, _: _Arguments) -> None:
    """torch's watchdog ends a rank whose collective takes longer than the group's limit, as here after a while."""
    entries = [] if world.rank == 1 else [entry(2, profiling_name="nccl:all_reduce", retired=False)]
    dump = json.dumps({"entries": entries}).encode()
    torch._C._distributed_c10d._dump_nccl_trace_json = lambda **_: dump  # type: ignore[attr-defined]  # as with NCCL
    end_s = time.monotonic() + _LONG_S
    while time.monotonic() < end_s:
        # A call on a device can use the CPU while it waits.
        torch.ones(100).sum()
    if world.rank == 0:
        os.abort()
    threading.Event().wait()


# Small, for every run: each kind of wait once, and the parallel models. A stress run takes all.
_FEW = (
    "early return",
    "one batch more",
    "other collective",
    "other order of two groups",
    "sub-group forgotten",
    "coalesced against plain",
    "missing world.barrier",
    "missing monitored_barrier",
    "missing new_group",
    "missing init_process_group",
    "missing all_gather_object",
    "receive without send",
    "receive from any rank",
    "ring of receives",
    "other tag",
    "several async calls",
    "async call against recv",
    "functional collective",
    "full_tensor on rank 0",
    "DDP made on some ranks",
    "DDP, unused branch",
    "FSDP2, one forward less",
    "pipeline without a stage",
)
_HANGS = [
    name
    for name, kind in KINDS.items()
    if not kind.why_not and (name in _FEW or "DIST_TESTING_STRESS_CASES" in os.environ)
]
_NO_HANGS = (
    _sleeps,
    _computes,
    _limits_its_waits,
    _calls_from_a_thread,
    _has_a_child,
    _sends_before_it_waits,
)
_OTHERS = (
    _meets_no_helper,
    _forks_and_hangs,
    _one_skips,
    _is_stopped,
    _is_ended_by_nccl,
)


def _kind(name: str) -> Callable[[World, _Arguments], None]:
    def body(world: World, _: _Arguments) -> None:
        KINDS[name].body(world)

    return body


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """One engine for all cases: each gets ranks of its own."""
    others = {function.__name__: function for function in (*_NO_HANGS, *_OTHERS)}
    with engine_for({name: _kind(name) for name in KINDS} | others) as engine:
        yield engine


def _assert_proven(result: CaseResult, kind: HangKind) -> None:
    report = failure_report(result)
    assert result.verdict.is_proven, report
    assert result.verdict.cause is Cause.HANG
    assert kind.said in result.verdict.reason
    assert result.verdict.culprit == kind.culprit
    assert kind.culprit not in result.verdict.victims
    if kind.suspects:
        assert result.verdict.suspects == kind.suspects
        first, second = kind.suspects
        assert result.verdict.reason.endswith(f"; the fault is on rank {first} or on rank {second}")
    assert "hang_" in "\n".join([result.verdict.reason, *result.notes]), "no line of the test is told"
    assert "It is proven that no rank could ever go on" in report
    assert "at the deadline" not in report


@pytest.mark.parametrize("name", _HANGS)
def test_hang_is_proven(engine: Engine, name: str) -> None:
    """Minutes of waiting for a limit, and then a guess: what a hang costs everywhere else."""
    _assert_proven(run(engine, name, timeout_s=_LIMIT_S), KINDS[name])


# A collective, groups and the store, each over the network between the nodes.
@needs_nodes
@pytest.mark.parametrize("name", ["early return", "other order of two groups", "missing world.barrier"])
def test_hang_over_two_nodes_is_proven(engine: Engine, name: str) -> None:
    """If this fails, ranks in several networks cost their limit when they lock up, or another rank is blamed."""
    _assert_proven(run(engine, name, timeout_s=_LIMIT_S, settings={"nodes": 2}), KINDS[name])


@pytest.mark.parametrize("function", _NO_HANGS, ids=lambda function: function.__name__.strip("_"))
def test_correct_world_is_not_stopped(engine: Engine, function: Any) -> None:
    """A false alarm would be worse than any wait: a correct test that fails when the machine is busy."""
    result = run(engine, function.__name__, timeout_s=_LIMIT_S)
    assert result.verdict.status is Status.PASSED, failure_report(result)


def test_helper_is_not_in_the_way_of_a_test(engine: Engine) -> None:
    """Tests count threads, fork, and wait for signals; what watches them must not change what they find."""
    result = run(engine, "_meets_no_helper", world_size=2, timeout_s=60, init=False)
    assert result.verdict.status is Status.PASSED, failure_report(result)


def test_hang_is_proven_after_a_fork(engine: Engine) -> None:
    """The helper thread steps aside for a fork, and is back afterwards."""
    result = run(engine, "_forks_and_hangs", timeout_s=_LIMIT_S, init=False)
    assert result.verdict.is_proven, failure_report(result)
    assert result.verdict.culprit == 1


def test_skip_of_one_rank_ends_the_wait_of_the_others(engine: Engine) -> None:
    """They would wait for it until the limit; what is wrong is that the ranks disagree."""
    result = run(engine, "_one_skips", timeout_s=_LIMIT_S)
    assert result.verdict.cause is Cause.DISAGREEMENT
    said = "rank 1 skipped: not today; ranks 0, 2, 3 wait for it in barrier #1 of the default group ("
    assert result.verdict.reason.startswith(f"ranks disagree about a skip: {said}"), result.verdict.reason
    assert [outcome.kind for outcome in result.outcomes].count(Kind.STOPPED) == 3


def test_rank_without_a_ledger_leaves_it_to_the_deadline(engine: Engine) -> None:
    """What a rank does not tell is not made up; the case still ends, and the rank that is missing is named."""
    result = run(engine, "_is_stopped", timeout_s=5)
    assert result.verdict.cause is Cause.HANG, result
    assert not result.verdict.is_proven
    assert result.verdict.culprit == 1, result.verdict
    # Another rank can be late, too, on a busy machine.
    states = {ledger.rank: ledger.state for ledger in result.ledgers}
    assert states[1] == "gave no answer (its state is T (stopped))", states


@pytest.mark.parametrize("name", ["irecv in a variable", "store key never set"])
def test_wait_that_only_the_test_shows_is_told_at_its_limit(engine: Engine, name: str) -> None:
    """It is unknown which rank can end it: nothing is proven, and the ledger still names the line and the rank."""
    result = run(engine, name, timeout_s=5)
    kind, report = KINDS[name], failure_report(result)
    assert not result.verdict.is_proven, report
    assert result.verdict.culprit == kind.culprit, report
    assert kind.said in result.verdict.reason
    assert any("hang_kinds.py:" in note for note in result.notes), result.notes


def test_recorder_that_is_off_leaves_it_to_the_deadline(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user may switch torch's recorder off; a hang then is what it was before."""
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "0")
    result = run(engine, "early return", timeout_s=4)
    assert result.verdict.cause is Cause.HANG
    assert not result.verdict.is_proven
    assert "rank 3" in result.verdict.reason
    assert "without a record of its collectives (TORCH_FR_BUFFER_SIZE=0" in failure_report(result)
    # The limit of the group, which is below that of the case, has ended the wait. The first rank that it ends closes
    # its connections, and on a busy machine another one sees that first.
    ended_by = {result.outcomes[rank].collateral for rank in range(3)}
    assert "late" in ended_by
    assert ended_by <= {"late", "lost"}


def test_calls_of_nccl_are_told_when_its_watchdog_ends_a_rank(engine: Engine) -> None:
    """If this fails, the report of the abort does not say which rank had not begun the collective."""
    result = run(engine, "_is_ended_by_nccl", world_size=2, timeout_s=60)
    assert result.verdict.cause is Cause.CRASH
    assert "not ended on nccl: all_reduce #2 of the default group [[3]] Float." in failure_report(result)
