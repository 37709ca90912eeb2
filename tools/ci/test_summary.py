"""The summary of a CI job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from build_events import Invocation
from summary import Summary, summarise, summary_lines

from dist_testing.core.ground.record import CaseRecord
from dist_testing.report.model import Problem, Report, RunRecord

PASSED = CaseRecord("c.ok", "passed", duration_s=1.0)
FAILED = CaseRecord("c.bad", "failed", duration_s=1.0, message="rank 1 raised ValueError")
SKIPPED = CaseRecord("c.gpu", "skipped", message="Need at least 2 CUDA devices")


def _run(label: str, *cases: CaseRecord, **values: Any) -> RunRecord:
    return RunRecord(label, cases=cases, **{"status": "PASSED", **values})


def _summary(*runs: RunRecord, problems: Sequence[Problem] = (), **values: Any) -> Summary:
    invocation = Invocation("events", exit_code=0, exit_name="SUCCESS", **values)
    return summarise(invocation, Report((invocation,), runs, problems=tuple(problems)))


def _page(*runs: RunRecord, **values: Any) -> str:
    return "\n".join(summary_lines(_summary(*runs, **values)))


def test_results_that_cannot_be_read_cost_their_own_lines_alone() -> None:
    """If it fails, one killed test costs the summary and the exit status of a whole CI job."""
    runs = [
        _run("//a:killed", status="TIMEOUT", has_results=False),
        _run("//a:good", has_results=False),
        _run("//a:bad", FAILED, status="FAILED"),
    ]
    values: dict[str, Any] = {
        "summaries": {"//a:killed": "TIMEOUT", "//a:good": "PASSED", "//a:bad": "FAILED"},
        "problems": [
            Problem("//a:good_too", "another file is missing"),
            Problem("//a:good (shard 2)", "cut.xml cannot be read as XML\nIt was cut off.\nRun it again."),
        ],
    }
    page = _page(*runs, **values)
    assert "TIMEOUT  //a:killed\n    attempt 1: TIMEOUT; its results cannot be read" in page
    assert "NO RESULTS  //a:good: cut.xml cannot be read as XML\n" in page
    assert "FAILED  //a:bad\n    c.bad: rank 1 raised ValueError" in page
    summary = _summary(*runs, **values)
    assert (summary.unread, summary.idle) == (["//a:good"], [])


def test_the_last_attempt_of_a_repeated_test_counts() -> None:
    """If it fails, two cases count as four, and the summary hides why the first attempt failed."""
    runs = [
        _run("//a:a", PASSED, FAILED, attempt=1, status="FAILED"),
        _run("//a:a", PASSED, PASSED, attempt=2),
        # Of another configuration, so not an attempt of the same action.
        _run("//a:a", PASSED, PASSED, configuration="arm"),
    ]
    page = _page(*runs, summaries={"//a:a": "FLAKY"})
    assert "FLAKY  //a:a: passed after a failure\n    c.bad: rank 1 raised ValueError\n" in page
    assert "cases: 4 passed\n" in page


@pytest.mark.parametrize("status", ["FLAKY", "TIMEOUT"])
def test_only_passed_targets_need_readable_results(status: str) -> None:
    """If it fails, a killed first attempt makes a CI job red, or a timeout is reported as a lost file."""
    runs = [_run("//a:a", status="TIMEOUT", has_results=False)]
    if status == "FLAKY":
        runs.append(_run("//a:a", PASSED, attempt=2))
    assert _summary(*runs, summaries={"//a:a": status}).unread == []
    page = _page(*runs, summaries={"//a:a": status})
    assert f"{status}  //a:a" in page
    assert "    attempt 1: TIMEOUT; its results cannot be read\n" in page


@pytest.mark.parametrize(
    ("status", "shards", "idle"),
    [("PASSED", [[SKIPPED], []], ["//a:a"]), ("PASSED", [[PASSED], [SKIPPED]], []), ("FAILED", [[SKIPPED], []], [])],
)
def test_a_target_ran_nothing_if_no_shard_of_it_did(
    status: str, shards: Sequence[Sequence[CaseRecord]], idle: Sequence[str]
) -> None:
    """If it fails, a shard with nothing but skips makes a CI job red, or a failed target is reported twice."""
    runs = [_run("//a:a", *cases, shard=number, status=status) for number, cases in enumerate(shards, start=1)]
    assert _summary(*runs, summaries={"//a:a": status}).idle == idle


def test_it_is_told_where_results_come_from() -> None:
    """If it fails, users cannot see that a cache has stopped working."""
    runs = [
        _run("//a:a", cached="remote"),
        _run("//a:b", cached="remote"),
        _run("//a:c", cached="local"),
        _run("//a:d", strategy="remote"),
    ]
    assert "test actions: 1 ran (remote), 2 remote cache, 1 unchanged here" in _page(*runs)


def test_skips_and_failures_have_their_reasons() -> None:
    """If it fails, users have to search the logs for the reasons."""
    run = _run("//a:a", PASSED, FAILED, SKIPPED, SKIPPED, status="FAILED", strategy="remote")
    broken = {"//a:c": "missing input file\nmore"}
    page = _page(run, summaries={"//a:a": "FAILED"}, incompatible=["//a:b"], broken=broken)
    for part in (
        "FAILED  //a:a\n    c.bad: rank 1 raised ValueError",
        "NOT BUILT  //a:c\n    missing input file",
        "SKIPPED BY BAZEL  //a:b",
        "    2 x Need at least 2 CUDA devices",
        "cases: 1 failed, 1 passed, 2 skipped",
        "targets: 0 passed, 2 did not pass, 1 skipped by Bazel, 0 ran nothing",
    ):
        assert part in page
