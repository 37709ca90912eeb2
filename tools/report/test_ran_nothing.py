"""Targets that are green and tested nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import ran_nothing
from testlogs import Results, Run

from dist_testing.core.bazel.junit import write_xml
from dist_testing.core.ground.record import CaseRecord


def _case(message: str = "", *, ran: bool) -> CaseRecord:
    return CaseRecord("c.n", "passed" if ran else "skipped", message=message)


def test_a_target_is_idle_if_none_of_its_runs_ran_a_case() -> None:
    """One shard alone may skip all its cases."""
    results = Results(
        [
            Run("//a:busy", [_case(ran=True), _case("why", ran=False)]),
            Run("//a:sharded", [_case("why", ran=False)]),
            Run("//a:sharded", [_case(ran=True)]),
            Run("//a:idle", [_case("no GPU", ran=False), _case("no GPU", ran=False), _case("other", ran=False)]),
            Run("//a:empty", []),
            Run("//a:known", [CaseRecord("c.n", "xfailed", message="known")]),
        ]
    )
    idle = ran_nothing.idle_targets(results)
    assert [(one.target, dict(one.reasons)) for one in idle] == [
        ("//a:empty", {}),
        ("//a:idle", {"no GPU": 2, "other": 1}),
    ]


def test_the_list_has_reasons_and_the_status_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The list is for people, the status is for CI."""
    path = tmp_path / "test.xml"
    write_xml(path, "//a:idle", [_case("no GPU", ran=False)])
    assert ran_nothing.main([str(path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "1 of 1 targets ran nothing",
        "//a:idle: 1 case(s), none ran",
        "    1 x no GPU",
    ]
    write_xml(path, "//a:busy", [_case(ran=True)])
    assert ran_nothing.main([str(path)]) == 0
    assert capsys.readouterr().out == "0 of 1 targets ran nothing\n"


def test_missing_results_have_a_status_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CI must not take a wrong path for idle targets."""
    assert ran_nothing.main([str(tmp_path)]) == 2
    assert "the folder has no test.xml in it" in capsys.readouterr().err
