"""Every fault, caused for real: right verdict, right culprit, nothing left; on chosen ranks, and on random ones."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import psutil
import pytest

from dist_testing import World
from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.report import failure_report
from dist_testing.core.ground.case import Case, CaseBody, CaseResult
from dist_testing.core.ground.outcomes import Cause, Kind, Status
from tests.support.faults import ENDS, FAULTS, OTHER_ENDS, OtherEnd, one_fails
from tests.support.worlds import alive, engine_for, run, to_the_deadline

_STACKS = {"sleep": "in wait", "loop with GIL": "in _loop_with_gil", "stop": "T (stopped)"}
# Of random cases: few, for every run; a stress run sets a thousand.
_CASES = int(os.environ.get("DIST_TESTING_STRESS_CASES", "12"))
# Bazel sets the variable with --runs_per_test. All other runs use one seed, so that a failure repeats.
_SEED = int(os.environ.get("TEST_RANDOM_SEED", "1"))
_ENDS = {**{fault: OtherEnd(end.cause, is_culprit=True) for fault, end in ENDS.items()}, **OTHER_ENDS}
_SLOW = sorted(fault for fault, end in _ENDS.items() if end.is_slow)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """One engine for all cases: each fault must leave it fit for the next."""
    with engine_for({"one fails": one_fails}) as engine:
        yield engine


def _run(engine: Engine, fault: str, rank: int, peers: str = "collective") -> CaseResult:
    return run(engine, "one fails", arguments={"fault": fault, "rank": rank, "peers": peers})


def _runs(engine: Engine, fault: str, rank: int, peers: str, size: int = 4) -> Iterator[CaseResult]:
    arguments = {"fault": fault, "rank": rank, "peers": peers}
    if _ENDS[fault].is_slow:
        yield from to_the_deadline(engine, "one fails", world_size=size, arguments=arguments)
    else:
        yield run(engine, "one fails", world_size=size, arguments=arguments)


# Rank 0 serves the store.
@pytest.mark.parametrize(("rank", "peers"), [(0, "collective"), (2, "collective"), (0, "done")])
@pytest.mark.parametrize("fault", ENDS)
def test_rank_that_fails_is_the_culprit(engine: Engine, fault: str, peers: str, rank: int) -> None:
    """If this fails, the first name in the report is not the rank to look at."""
    end = ENDS[fault]
    result = _run(engine, fault, rank, peers)
    verdict = result.verdict
    assert (Status.FAILED, end.cause, rank) == (verdict.status, verdict.cause, verdict.culprit), result
    assert end.kind is result.outcomes[rank].kind
    assert end.said in failure_report(result).rpartition(f"rank {rank} of 4 failed first")[2]
    others = {outcome.kind for outcome in result.outcomes if outcome.rank != rank}
    if peers == "collective":
        assert set(range(4)) - {rank} == set(verdict.victims), "every rank that waited for it is a victim"
    else:
        assert {Kind.PASSED} == others, "every rank that did not need it has passed"


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("fault", OTHER_ENDS)
def test_rank_that_does_not_end(engine: Engine, fault: str, rank: int) -> None:
    """If this fails, a right rank is blamed at a deadline, a process outlives the run, or a harmless thread fails."""
    end = OTHER_ENDS[fault]
    peers = "collective" if end.meets_peers else "done"
    expected = end.cause, rank if end.is_culprit else None
    victims = set(range(4)) - {rank} if peers == "collective" else set()
    for result in _runs(engine, fault, rank, peers):
        verdict = result.verdict
        if (verdict.cause, verdict.culprit) == expected and victims <= set(verdict.victims):
            break
    assert (verdict.cause, verdict.culprit) == expected, result
    assert verdict.status is (Status.PASSED if end.cause is Cause.NONE else Status.FAILED)
    if end.cause is Cause.HANG and peers == "collective":
        assert victims == set(verdict.victims)
        assert _STACKS[fault] in result.stacks[rank]
        assert fault == "stop" or "in one_fails" in result.stacks[rank]
    elif end.cause is Cause.HANG:
        assert result.outcomes[rank].phase == "destroy"
    elif end.cause is Cause.DISAGREEMENT:
        assert f"rank {rank} skipped: planted reason" in verdict.reason
    elif end.cause is Cause.LEAK:
        (leaked,) = result.leaked
        assert not alive(int(leaked.rpartition("pid ")[2].partition(",")[0]))


@pytest.mark.parametrize("rank", [0, 2])
def test_rank_that_waits_for_a_message_that_is_never_sent_fails(engine: Engine, rank: int) -> None:
    """If this fails, a wait that can never end lasts until the limit of the case."""
    result = _run(engine, "wait for a missing message", rank, peers="done")
    assert (Status.FAILED, Cause.HANG) == (result.verdict.status, result.verdict.cause), result
    assert result.verdict.is_proven
    assert result.outcomes[rank].kind is Kind.HUNG


def test_rank_that_has_died_as_expected_is_not_waited_for(engine: Engine) -> None:
    """If this fails, rank 0, which serves the store, waits for the dead rank until the case's long limit."""
    result = run(
        engine,
        "one fails",
        timeout_s=3600.0,
        expected_exits={2: -9},
        arguments={"fault": "kill", "rank": 2, "peers": "done"},
    )
    assert result.verdict.status is Status.PASSED, result


def test_interrupted_wait_leaves_no_rank(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, the next case begins beside ranks that the runner no longer watches."""
    content = {"function": "one fails", "fault": "sleep", "rank": 1, "peers": "collective"}
    running = engine.start(Case("given up", 2, CaseBody("functions", json.dumps(content)), 60.0, "fork"))
    supervisor = running.world.supervisor

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(supervisor, "wait_case", interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.finish(running)
    assert supervisor.is_over
    assert all(record.has_ended for record in supervisor.records)


def test_fork_server_keeps_nothing_of_a_world() -> None:
    """If this fails, a run with a thousand cases runs out of descriptors."""
    others = psutil.Process().children()
    arguments = {"fault": "", "rank": -1, "peers": "done"}
    open_files = []
    with engine_for({"one fails": one_fails}) as worlds:
        for _ in range(2):
            assert run(worlds, "one fails", arguments=arguments).verdict.status is Status.PASSED
            (fork_server,) = [process for process in psutil.Process().children() if process not in others]
            open_files.append(fork_server.num_fds())
    assert open_files[0] == open_files[1]


def _leave_shared_memory(world: World, body: dict[str, Any]) -> None:
    """Leave a child behind, so that Python's tracker of shared memory does not clean up."""
    if world.rank == 0:
        SharedMemory(body["name"], create=True, size=1)
        if os.fork() == 0:
            os.setsid()
            signal.pause()


def test_shared_memory_is_removed_with_leaked_children() -> None:
    """If this fails, each such case costs the machine memory: the kill also ends the process that unlinks it."""
    # Not from the pid, which a process of another sandbox can have, too: all sandboxes share /dev/shm.
    name = f"dist-test-{secrets.token_hex(8)}"
    with engine_for({"leave shared memory": _leave_shared_memory}) as worlds:
        result = run(worlds, "leave shared memory", world_size=2, arguments={"name": name})
    assert result.verdict.cause is Cause.LEAK, result
    assert len(result.leaked) == 1, result.leaked
    assert not Path("/dev/shm", name).exists()


def _wait_for_child(world: World, _: dict[str, Any]) -> None:
    """Fork; both processes return from the test, the child first."""
    if pid := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_child_that_returns_from_the_test_ends_at_once() -> None:
    """If this fails, a forked child waits for the rank's next instruction and takes it from the rank."""
    with engine_for({"wait for child": _wait_for_child}) as worlds:
        result = run(worlds, "wait for child", world_size=2, timeout_s=20.0)
    assert result.verdict.status is Status.PASSED, result


def test_long_message_keeps_its_head_and_its_tail(engine: Engine) -> None:
    """If this fails, eight megabytes of assertion block the rank, fill the runner, or lose the text."""
    text = _run(engine, "raise much", 1).outcomes[1].text
    assert "head xxx" in text
    assert "xxx tail" in text
    assert len(text) < 1 << 20


def test_output_is_quoted_whatever_its_bytes(engine: Engine) -> None:
    """If this fails, eight megabytes of output, or invalid bytes, hide the last lines of a rank's log."""
    result = _run(engine, "print much", 1)
    assert "y" * 1023 in result.logs[1]
    assert result.log_files[1].stat().st_size > 8 << 20
    assert "output of rank 1, last 40 lines" in failure_report(result)


def _belongings() -> dict[str, frozenset[str]]:
    """Return the runner's open files, threads and shared memory segments."""
    itself = psutil.Process()
    return {
        "descriptors": frozenset(os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()),
        "threads": frozenset(str(thread.id) for thread in itself.threads()),
        "segments": frozenset(area.path for area in itself.memory_maps() if area.path.startswith("/dev/shm")),
    }


def test_every_fault_has_an_expectation() -> None:
    """If this fails, a new fault is never drawn."""
    assert FAULTS.keys() - {"wait for a missing message"} == _ENDS.keys()


def test_random_faults_get_the_right_verdict(engine: Engine) -> None:
    """If this fails, a platform team cannot trust a red or a green result."""
    chance = random.Random(_SEED)
    print(f"seed {_SEED}: TEST_RANDOM_SEED={_SEED} repeats this run")
    # The first case of an engine creates what stays for the run: the fork server, its socket, the folder.
    _run(engine, "raise", 0)
    others, before = set(psutil.Process().children(recursive=True)), _belongings()
    wrong = []
    for number in range(_CASES):
        # A hang takes its whole deadline, so only one case in eight is one.
        fault = chance.choice(_SLOW if chance.random() < 0.125 else sorted(_ENDS.keys() - _SLOW))
        end = _ENDS[fault]
        size = chance.randint(1, 4)
        rank = chance.randrange(size)
        peers = chance.choice(["collective", "done"]) if end.meets_peers else "done"
        has_skipped = fault == "skip" and size == 1
        cause = Cause.NONE if has_skipped else end.cause
        passed = Status.SKIPPED if has_skipped else Status.PASSED
        expected = (passed if cause is Cause.NONE else Status.FAILED, cause, rank if end.is_culprit else None)
        for result in _runs(engine, fault, rank, peers, size):
            got = result.verdict
            if is_right := (got.status, got.cause, got.culprit) == expected:
                break
        if not is_right:
            wrong.append(f"case {number}: {fault} on rank {rank} of {size}, peers {peers}: {got}, {result.outcomes}")
        if len(result.outcomes) != size or any(outcome.kind is Kind.NEVER_STARTED for outcome in result.outcomes):
            wrong.append(f"case {number}: {fault}: not every rank is accounted for: {result.outcomes}")
        orphans = [line for line in result.leaked if alive(int(line.rpartition("pid ")[2].partition(",")[0]))]
        assert not orphans, f"case {number}: {fault}: {orphans}"
        assert _belongings() == before, f"case {number}: {fault} left something in the runner"
    assert not wrong, "\n".join(wrong)
    started = set(psutil.Process().children(recursive=True)) - others
    assert not started, f"besides the fork server: {started}"
