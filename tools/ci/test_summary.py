"""The summary of a CI job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from build_events import Attempt, Invocation
from summary import summarise, summary_lines

from dist_testing.core.bazel.junit import write_xml
from dist_testing.core.ground.record import CaseRecord
from dist_testing.report.build_events import Output

PASSED = CaseRecord("c.ok", "passed", duration_s=1.0)
FAILED = CaseRecord("c.bad", "failed", duration_s=1.0, message="rank 1 raised ValueError")
SKIPPED = CaseRecord("c.gpu", "skipped", message="Need at least 2 CUDA devices")


def _attempt(label: str, xml: Path | None = None, **values: Any) -> Attempt:
    usual: dict[str, Any] = {"configuration": "k8", "status": "PASSED", "duration_s": 1.0}
    return Attempt(label, outputs=(Output("test.xml", xml),), **{**usual, **values})


def _invocation(attempts: Sequence[Attempt], **values: Any) -> Invocation:
    usual: dict[str, Any] = {"exit_code": 0, "exit_name": "SUCCESS"}
    return Invocation("events", attempts=list(attempts), **{**usual, **values})


def _xml(file: Path, *cases: CaseRecord) -> Path:
    write_xml(file, "//a:a", cases)
    return file


def _page(invocation: Invocation) -> str:
    return "\n".join(summary_lines(summarise(invocation)))


def test_a_test_xml_that_was_cut_off_costs_its_own_lines_alone(tmp_path: Path) -> None:
    """If it fails, one killed test costs the summary and the exit status of a whole CI job."""
    cut = tmp_path / "cut.xml"
    cut.write_text("<testsuites><testsuite><testcase na", encoding="utf-8")
    attempts = [
        _attempt("//a:killed", status="TIMEOUT", xml=cut),
        _attempt("//a:good", xml=cut),
        _attempt("//a:bad", status="FAILED", xml=_xml(tmp_path / "test.xml", FAILED)),
    ]
    summaries = {"//a:killed": "TIMEOUT", "//a:good": "PASSED", "//a:bad": "FAILED"}
    invocation = _invocation(attempts, summaries=summaries)
    page = _page(invocation)
    assert f"TIMEOUT  //a:killed\n    attempt 1: TIMEOUT; {cut}: cannot be read as XML" in page
    assert f"NO RESULTS  //a:good: {cut}: cannot be read as XML" in page
    assert "FAILED  //a:bad\n    c.bad: rank 1 raised ValueError" in page
    summary = summarise(invocation)
    assert (list(summary.unread), summary.idle) == (["//a:good"], [])


def test_the_last_attempt_of_a_repeated_test_counts(tmp_path: Path) -> None:
    """If it fails, two cases count as four, and the summary hides why the first attempt failed."""
    first, second = _xml(tmp_path / "1.xml", PASSED, FAILED), _xml(tmp_path / "2.xml", PASSED, PASSED)
    attempts = [
        _attempt("//a:a", attempt=1, status="FAILED", xml=first),
        _attempt("//a:a", attempt=2, xml=second),
        # Of another configuration, so not an attempt of the same action.
        _attempt("//a:a", configuration="arm", xml=second),
    ]
    page = _page(_invocation(attempts, summaries={"//a:a": "FLAKY"}))
    assert "FLAKY  //a:a: passed after a failure\n    c.bad: rank 1 raised ValueError\n" in page
    assert "cases: 4 passed\n" in page


@pytest.mark.parametrize("status", ["FLAKY", "TIMEOUT"])
def test_only_passed_targets_need_readable_results(tmp_path: Path, status: str) -> None:
    """If it fails, a killed first attempt makes a CI job red, or a timeout is reported as a lost file."""
    attempts = [_attempt("//a:a", status="TIMEOUT")]
    if status == "FLAKY":
        attempts.append(_attempt("//a:a", attempt=2, xml=_xml(tmp_path / "2.xml", PASSED)))
    invocation = _invocation(attempts, summaries={"//a:a": status})
    assert summarise(invocation).unread == {}
    page = _page(invocation)
    assert f"{status}  //a:a" in page
    assert "    attempt 1: TIMEOUT; its test.xml is not on this machine\n" in page


@pytest.mark.parametrize(
    ("status", "shards", "idle"),
    [
        ("PASSED", [[SKIPPED], []], ["//a:a"]),
        ("PASSED", [[PASSED], [SKIPPED]], []),
        ("PASSED", [[SKIPPED], [PASSED]], []),
        ("FAILED", [[SKIPPED], []], []),
    ],
)
def test_a_target_ran_nothing_if_no_shard_of_it_did(
    tmp_path: Path, status: str, shards: Sequence[Sequence[CaseRecord]], idle: Sequence[str]
) -> None:
    """If it fails, a shard with nothing but skips makes a CI job red, or a failed target is reported twice."""
    attempts = [
        _attempt("//a:a", shard=number, status=status, xml=_xml(tmp_path / f"{number}.xml", *cases))
        for number, cases in enumerate(shards, start=1)
    ]
    assert summarise(_invocation(attempts, summaries={"//a:a": status})).idle == idle


def test_it_is_told_where_results_come_from() -> None:
    """If it fails, users cannot see that a cache has stopped working."""
    attempts = [
        _attempt("//a:a", cached="remote"),
        _attempt("//a:b", cached="remote"),
        _attempt("//a:c", cached="local"),
        _attempt("//a:d", strategy="remote"),
    ]
    page = _page(_invocation(attempts))
    assert "test actions: 1 ran (remote), 2 remote cache, 1 unchanged here" in page


def test_skips_and_failures_have_their_reasons(tmp_path: Path) -> None:
    """If it fails, users have to search the logs for the reasons."""
    file = _xml(tmp_path / "test.xml", PASSED, FAILED, SKIPPED, SKIPPED)
    attempt = _attempt("//a:a", status="FAILED", strategy="remote", xml=file)
    broken = {"//a:c": "missing input file\nmore"}
    page = _page(_invocation([attempt], summaries={"//a:a": "FAILED"}, incompatible=["//a:b"], broken=broken))
    for part in (
        "FAILED  //a:a\n    c.bad: rank 1 raised ValueError",
        "NOT BUILT  //a:c\n    missing input file",
        "SKIPPED BY BAZEL  //a:b",
        "    2 x Need at least 2 CUDA devices",
        "cases: 1 failed, 1 passed, 2 skipped",
        "targets: 0 passed, 2 did not pass, 1 skipped by Bazel, 0 ran nothing",
    ):
        assert part in page
