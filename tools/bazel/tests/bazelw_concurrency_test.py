"""Two runs at once, and runs that are stopped in the middle."""

from __future__ import annotations

import os
import signal

from bazelw_testing import RELEASED_STATUS, ReleaseServer, Workspace, end, wait_for_line


def test_the_second_of_two_runs_waits_and_says_so(workspace: Workspace, server: ReleaseServer) -> None:
    """Otherwise both would write the same files."""
    server.may_answer.clear()
    first = workspace.start("info")
    assert server.asked.wait(60)
    second = workspace.start("info")
    note = wait_for_line(second, "another run")
    assert "is filling the cache; waiting for it to finish" in note
    server.may_answer.set()
    for process in (first, second):
        status, stdout, _ = end(process)
        assert status == RELEASED_STATUS
        assert "released bazel" in stdout
    assert len(server.paths) == 1
    assert workspace.leftovers() == []


def test_an_interrupted_run_leaves_nothing(workspace: Workspace, server: ReleaseServer) -> None:
    """Otherwise the next start would run half a Bazel."""
    server.may_finish.clear()
    process = workspace.start("info")
    wait_for_line(process, "fetching Bazel")
    os.killpg(process.pid, signal.SIGINT)
    server.may_finish.set()
    status, stdout, stderr = end(process)
    assert status in (128 + signal.SIGINT, -signal.SIGINT)
    assert stdout == ""
    assert "interrupted; nothing half done is left" in stderr
    assert workspace.leftovers() == []
    assert not workspace.release.exists()


def test_what_a_killed_run_left_is_removed_by_the_next(workspace: Workspace, server: ReleaseServer) -> None:
    """Otherwise it would stay for ever, or be taken for a whole Bazel."""
    server.may_finish.clear()
    process = workspace.start("info")
    wait_for_line(process, "fetching Bazel")
    os.killpg(process.pid, signal.SIGKILL)
    end(process)
    (left,) = workspace.leftovers()
    assert left.endswith(".partial")
    unfinished_prefix = workspace.cache / "debian-x86_64-0123456789ab"
    (unfinished_prefix / "usr").mkdir(parents=True)

    server.may_finish.set()
    result = workspace.run("info")
    assert result.returncode == RELEASED_STATUS
    assert f"removing '{left}', which an interrupted run left unfinished" in result.stderr
    assert "removing 'debian-x86_64-0123456789ab'" in result.stderr
    assert workspace.leftovers() == []
