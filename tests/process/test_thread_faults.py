"""Every fault, caused for real, on one of four ranks that are threads of one process: the engine survives all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dist_testing import World
from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.report import failure_report
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.outcomes import Cause, Status
from tests.support.faults import ENDS, FAULTS
from tests.support.worlds import engine_for, run, to_the_deadline

# They concern the process, and so all ranks; or end a thread as another fault does.
_OTHERWISE = {"hard exit 3", "kill", "out of memory", "terminate"}


def _one_fails(world: World, body: dict[str, Any]) -> None:
    """Cause the fault on one rank; the others wait for it in a collective."""
    dist.barrier()
    if world.rank == body["rank"]:
        FAULTS[body["fault"]](world)
    dist.all_reduce(torch.ones(4))


def _one_leaves_something(world: World, body: dict[str, Any]) -> None:
    """Leave something behind on one rank, and pass."""
    dist.barrier()
    if world.rank == 2:
        FAULTS[body["fault"]](world)
    dist.barrier()


def _good(world: World, _: dict[str, Any]) -> None:
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == world.size


@pytest.fixture(scope="module")
def engines() -> Iterator[Engine]:
    """One engine for all cases."""
    functions = {"one fails": _one_fails, "one leaves something": _one_leaves_something, "good": _good}
    with engine_for(functions, backend="threaded") as engine:
        yield engine


@pytest.fixture
def engine(engines: Engine) -> Iterator[Engine]:
    """Yields the engine, and checks that each fault left it fit for the next case."""
    yield engines
    result = run(engines, "good", isolation="thread")
    assert result.verdict.status is Status.PASSED, failure_report(result)


def _run(engine: Engine, fault: str, rank: int) -> CaseResult:
    return run(engine, "one fails", isolation="thread", arguments={"fault": fault, "rank": rank})


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("fault", sorted(ENDS.keys() - _OTHERWISE))
def test_rank_that_fails_is_the_culprit(engine: Engine, fault: str, rank: int) -> None:
    """If this fails, one thread's fault is blamed on another: the kernel sees only one process."""
    end = ENDS[fault]
    result = _run(engine, fault, rank)
    verdict = result.verdict
    assert (Status.FAILED, end.cause, rank) == (verdict.status, verdict.cause, verdict.culprit), failure_report(result)
    assert end.kind is result.outcomes[rank].kind
    assert end.said in failure_report(result).rpartition(f"rank {rank} of 4 failed first")[2]
    assert set(range(4)) - {rank} == set(verdict.victims), failure_report(result)


@pytest.mark.parametrize(("fault", "name"), [("kill", "SIGKILL (9)"), ("terminate", "SIGTERM (15)")])
def test_end_from_outside_is_blamed_on_no_rank(engine: Engine, fault: str, name: str) -> None:
    """If this fails, a rank is blamed for what the kernel or another process did."""
    result = _run(engine, fault, 2)
    assert result.verdict.cause is Cause.CRASH
    report = failure_report(result)
    assert name in report
    assert "does not show which rank ended it" in report


@pytest.mark.parametrize("fault", ["sleep", "loop with GIL", "stop", "hang in destroy"])
def test_hang_is_reported_with_stacks(engine: Engine, fault: str) -> None:
    """If this fails, a thread that never returns stops the runner, or the report does not show where it is."""
    where = {"stop": "T (stopped)", "loop with GIL": "_loop_with_gil"}.get(fault, "wait")
    culprit = 2 if fault == "sleep" else None
    for result in to_the_deadline(engine, "one fails", isolation="thread", arguments={"fault": fault, "rank": 2}):
        if where in result.stacks.get(2, "") and culprit in (None, result.verdict.culprit):
            break
    assert result.verdict.cause is Cause.HANG, failure_report(result)
    assert where in result.stacks[2]
    assert culprit in (None, result.verdict.culprit)


def test_wait_for_a_message_that_is_never_sent_is_a_deadlock_at_once(engine: Engine) -> None:
    """If this fails, a message that is never sent takes the whole time limit."""
    result = _run(engine, "wait for a missing message", 2)
    assert result.verdict.cause is Cause.FAILURE
    report = failure_report(result)
    assert "rank 2: waiting for rank 3 to send" in report, report


@pytest.mark.parametrize("fault", ["close descriptors", "out of memory"])
def test_damaged_process_is_a_failure(engine: Engine, fault: str) -> None:
    """If this fails, ranks that can no longer report count as passed, or end the runner."""
    assert _run(engine, fault, 2).verdict.status is Status.FAILED


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("leave a session", "running process(es)"),
        ("fork", "running process(es)"),
        ("keep a thread", "running thread(s)"),
        ("fork twice", "children left behind"),
    ],
)
def test_leftovers_of_a_rank_fail_the_case(engine: Engine, fault: str, said: str) -> None:
    """If this fails, the next case runs beside the leftover, and a forked copy acts as one more rank."""
    result = run(engine, "one leaves something", isolation="thread", arguments={"fault": fault})
    assert result.verdict.status is Status.FAILED
    report = failure_report(result)
    assert said in report
    way_out = "put the test into a class or module of its own."
    assert fault == "fork twice" or ("Any of them may have done it" in report and way_out in report)
