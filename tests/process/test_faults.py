"""Every fault, for real, on rank 0 and on another rank of four: right verdict, right culprit, nothing left."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from dist_testing.case import Case, CaseBody, CaseResult
from dist_testing.engine.engine import Engine
from dist_testing.engine.report import failure_report
from dist_testing.outcomes import Cause, Kind, Status
from dist_testing.world import World
from tests.support.faults import FAULTS
from tests.support.worlds import alive, engine_for, run

# For a case that has to reach its deadline. Seconds; a rank needs a fraction of one to get into its fault.
_DEADLINE_S = 4.0


def _one_fails(world: World, body: dict[str, Any]) -> None:
    """One rank has the fault; the others wait for it in a collective, or have no part in anything."""
    dist.barrier()
    if world.rank == body["rank"]:
        FAULTS[body["fault"]](world)
    if body["peers"] == "collective":
        dist.all_reduce(torch.ones(4))


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """One engine for all cases: each must leave it fit for the next."""
    with engine_for({"one fails": _one_fails}) as engine:
        yield engine


def _run(engine: Engine, fault: str, rank: int, peers: str = "collective", timeout_s: float = 60.0) -> CaseResult:
    return run(
        engine,
        "one fails",
        timeout_s=timeout_s,
        arguments={"fault": fault, "rank": rank, "peers": peers},
    )


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("peers", ["collective", "done"])
@pytest.mark.parametrize(
    ("fault", "cause", "kind", "said"),
    [
        ("abort", Cause.CRASH, Kind.SIGNALLED, "SIGABRT (6)"),
        ("exit 0", Cause.CRASH, Kind.EXITED, "exited with code 0 in call, without finishing the test"),
        ("exit 3", Cause.CRASH, Kind.EXITED, "exited with code 3"),
        ("fill disk", Cause.FAILURE, Kind.RAISED, "No space left on device"),
        ("hard exit 0", Cause.CRASH, Kind.EXITED, "exited with code 0 in call, without finishing the test"),
        ("hard exit 3", Cause.CRASH, Kind.EXITED, "exited with code 3"),
        ("hard exit 77", Cause.CRASH, Kind.EXITED, "exited with code 77"),
        ("keyboard interrupt", Cause.FAILURE, Kind.RAISED, "KeyboardInterrupt"),
        ("kill", Cause.CRASH, Kind.SIGNALLED, "SIGKILL (9)"),
        ("out of memory", Cause.FAILURE, Kind.RAISED, "MemoryError"),
        ("print much", Cause.FAILURE, Kind.RAISED, "planted after much output"),
        ("raise", Cause.FAILURE, Kind.RAISED, "ValueError: planted"),
        ("raise much", Cause.FAILURE, Kind.RAISED, "ValueError: head"),
        ("raise unprintable", Cause.FAILURE, Kind.RAISED, "_Unprintable"),
        ("segfault", Cause.CRASH, Kind.SIGNALLED, "SIGSEGV (11)"),
        ("terminate", Cause.CRASH, Kind.SIGNALLED, "SIGTERM (15)"),
    ],
)
def test_rank_that_fails_is_the_culprit(
    engine: Engine, fault: str, cause: Cause, kind: Kind, said: str, peers: str, rank: int
) -> None:
    """A user must never have to look further than the first name in the report."""
    result = _run(engine, fault, rank, peers)
    verdict = result.verdict
    assert (Status.FAILED, cause, rank) == (verdict.status, verdict.cause, verdict.culprit), result
    assert kind is result.outcomes[rank].kind
    assert said in failure_report(result).rpartition(f"rank {rank} of 4 failed first")[2]
    others = {outcome.kind for outcome in result.outcomes if outcome.rank != rank}
    if peers == "collective":
        assert set(range(4)) - {rank} == set(verdict.victims), "whoever waited for it is a victim"
    else:
        assert {Kind.PASSED} == others, "whoever did not need it has passed"


@pytest.mark.parametrize("rank", [0, 2])
def test_rank_that_closed_its_channel_has_crashed(engine: Engine, rank: int) -> None:
    """Without its descriptors a rank can say nothing; on rank 0 the store's thread aborts first."""
    result = _run(engine, "close descriptors", rank)
    assert (Cause.CRASH, rank) == (result.verdict.cause, result.verdict.culprit), result


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("fault", ["sleep", "loop with GIL", "stop"])
def test_rank_that_stays_away_is_named_with_its_stack(engine: Engine, fault: str, rank: int) -> None:
    """At the deadline the ranks that waited are victims, also though they spoke first."""
    result = _run(engine, fault, rank, timeout_s=_DEADLINE_S)
    assert (Cause.HANG, rank) == (result.verdict.cause, result.verdict.culprit), result
    assert set(range(4)) - {rank} == set(result.verdict.victims)
    if fault == "stop":
        assert "T (stopped)" in result.stacks[rank]
    else:
        assert f"in {'_loop_with_gil' if 'GIL' in fault else 'wait'}" in result.stacks[rank]
        assert "in _one_fails" in result.stacks[rank]


@pytest.mark.parametrize("rank", [0, 2])
def test_rank_that_waits_for_a_message_that_nobody_sends_fails(engine: Engine, rank: int) -> None:
    """The group's own limit ends the wait, below the case's."""
    # The limits are a tenth of this apart, and a busy machine has to keep them in order.
    result = _run(engine, "wait for nobody", rank, peers="done", timeout_s=2 * _DEADLINE_S)
    assert (Status.FAILED, Cause.HANG) == (result.verdict.status, result.verdict.cause), result
    assert result.outcomes[rank].collateral == "late"


@pytest.mark.parametrize("rank", [0, 2])
def test_hang_in_destroy_is_a_hang(engine: Engine, rank: int) -> None:
    """A clean-up that never ends must not pass, and must not be taken for a hang of the test."""
    result = _run(engine, "hang in destroy", rank, timeout_s=_DEADLINE_S)
    assert (Cause.HANG, rank) == (result.verdict.cause, result.verdict.culprit), result
    assert result.outcomes[rank].phase == "destroy"


@pytest.mark.parametrize("rank", [0, 2])
def test_skip_on_one_rank_is_a_disagreement(engine: Engine, rank: int) -> None:
    """The other ranks wait for it; a skip that one rank decides alone would hide that they cannot go on."""
    result = _run(engine, "skip", rank)
    assert (Status.FAILED, Cause.DISAGREEMENT) == (result.verdict.status, result.verdict.cause)
    assert f"rank {rank} skipped: planted reason" in result.verdict.reason


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("fault", ["fork twice", "leave a session"])
def test_children_left_behind_fail_the_case_and_are_killed(engine: Engine, fault: str, rank: int) -> None:
    """What escapes from the rank's session must not escape from the run."""
    result = _run(engine, fault, rank)
    assert (Status.FAILED, Cause.LEAK) == (result.verdict.status, result.verdict.cause), result
    (leaked,) = result.leaked
    pid = int(leaked.rpartition("pid ")[2].rstrip(")"))
    assert not alive(pid)


def test_rank_that_has_died_as_expected_is_not_waited_for(engine: Engine) -> None:
    """Rank 0 serves the store until all have left; it would do so to the end of the case's time, which is long here."""
    result = run(
        engine,
        "one fails",
        timeout_s=3600.0,
        expected_exits={2: -9},
        arguments={"fault": "kill", "rank": 2, "peers": "done"},
    )
    assert result.verdict.status is Status.PASSED, result


def test_case_that_is_given_up_leaves_no_rank(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends the wait for them: otherwise the next case would begin beside ranks that run without a watch."""
    content = {"function": "one fails", "fault": "sleep", "rank": 1, "peers": "collective"}
    running = engine.start(Case("given up", 2, CaseBody("functions", json.dumps(content)), 60.0))
    supervisor = running.world.supervisor

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(supervisor, "wait_case", interrupt)
    with pytest.raises(KeyboardInterrupt):
        engine.finish(running)
    assert supervisor.is_over
    assert all(record.has_ended for record in supervisor.records)


def test_template_keeps_nothing_of_a_world() -> None:
    """A run with a thousand cases would end in one that finds no descriptor free."""
    others = psutil.Process().children()
    arguments = {"fault": "", "rank": -1, "peers": "done"}
    open_files = []
    with engine_for({"one fails": _one_fails}) as worlds:
        for _ in range(2):
            assert run(worlds, "one fails", arguments=arguments).verdict.status is Status.PASSED
            (template,) = [process for process in psutil.Process().children() if process not in others]
            open_files.append(template.num_fds())
    assert open_files[0] == open_files[1]


def _leave_shared_memory(world: World, body: dict[str, Any]) -> None:
    """A child that is left behind keeps Python's tracker of shared memory from its work."""
    if world.rank == 0:
        SharedMemory(body["name"], create=True, size=1)
        if os.fork() == 0:
            os.setsid()
            signal.pause()


def test_shared_memory_goes_with_the_children_that_were_left_behind() -> None:
    """What unlinks it must not be killed with them, nor blamed: each such case would cost the machine memory."""
    name = f"dist-test-{os.getpid()}"
    with engine_for({"leave shared memory": _leave_shared_memory}) as worlds:
        result = run(worlds, "leave shared memory", world_size=2, arguments={"name": name})
    assert result.verdict.cause is Cause.LEAK, result
    assert len(result.leaked) == 1, result.leaked
    assert not Path("/dev/shm", name).exists()


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("fault", ["fork", "keep a thread"])
def test_what_ends_with_the_rank_is_no_failure(engine: Engine, fault: str, rank: int) -> None:
    """A forked child that comes out of the test is not the rank, and a thread dies with its process."""
    result = _run(engine, fault, rank, peers="done")
    assert result.verdict.status is Status.PASSED, result


def _wait_for_child(world: World, _: dict[str, Any]) -> None:
    """Both come out of the test, the child first."""
    if pid := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_child_that_comes_out_of_the_test_ends_at_once() -> None:
    """It would wait for the rank's next instruction, and take it away from the rank."""
    with engine_for({"wait for child": _wait_for_child}) as worlds:
        result = run(worlds, "wait for child", world_size=2, timeout_s=20.0)
    assert result.verdict.status is Status.PASSED, result


def test_long_message_keeps_its_head_and_its_tail(engine: Engine) -> None:
    """Eight megabytes of assertion must not block the rank, fill the runner, or lose what was said."""
    text = _run(engine, "raise much", 1).outcomes[1].text
    assert "head xxx" in text
    assert "xxx tail" in text
    assert len(text) < 1 << 20


def test_output_is_quoted_whatever_its_bytes(engine: Engine) -> None:
    """The last lines of a rank's log are there after eight megabytes of it, and broken bytes do not hide them."""
    result = _run(engine, "print much", 1)
    assert "y" * 1023 in result.logs[1]
    assert result.log_files[1].stat().st_size > 8 << 20
    assert "output of rank 1, last 40 lines" in failure_report(result)


def test_world_after_all_faults_is_as_good_as_new(engine: Engine) -> None:
    """No fault may cost the next test anything."""
    result = _run(engine, "keep a thread", 3)
    assert result.verdict.status is Status.PASSED
