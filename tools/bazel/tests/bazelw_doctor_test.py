"""The report of `bazelw doctor`, which must never install anything."""

from __future__ import annotations

from bazelw_testing import MACHINE_FAULT, ReleaseServer, Workspace


def lines(output: str) -> dict[str, str]:
    """Return the report's lines by their subject, the last one of each."""
    parts = (line.partition(": ") for line in output.splitlines())
    return {subject.strip(): text.strip() for subject, _, text in parts}


def test_nothing_to_be_had(workspace: Workspace) -> None:
    """Otherwise a script could not ask whether a build is possible at all."""
    result = workspace.run("doctor")
    report = lines(result.stdout)
    assert result.returncode == MACHINE_FAULT
    assert report["would use"] == "nothing"
    assert report["PATH"] == "neither bazel nor bazelisk"
    assert report["cached release"] == report["cached Debian prefix"] == "none"
    assert "Connection refused" in report["release server"]
    assert "apt-get, dpkg-deb, tar not found" in report["Debian packages"]
    assert "GB free" in report["cache"]


def test_a_reachable_server_is_enough_and_is_not_downloaded_from(workspace: Workspace, server: ReleaseServer) -> None:
    """Otherwise asking for a report would fill the disk."""
    result = workspace.run("doctor")
    report = lines(result.stdout)
    assert result.returncode == 0
    assert report["release server"].startswith(f"{server.url} offers bazel-7.7.1-linux-")
    assert report["would use"] == f"release server: {report['release server']}"
    assert not workspace.cache.exists()


def test_every_bazel_on_path_gets_a_verdict(workspace: Workspace) -> None:
    """Otherwise a user would not know why theirs is not used. A bazelisk that is asked might download a Bazel."""
    marker = workspace.root / "started"
    workspace.add_program("bazelisk", f"#!/bin/sh\n: >{marker}\n")
    assert "not asked for its version" in workspace.run("doctor").stdout
    assert not marker.exists()
    old = workspace.add_bazel("6.4.0")
    isk = workspace.add_bazel("8.4.2", name="bazelisk")
    workspace.run("info")
    result = workspace.run("doctor")
    assert result.returncode == 0
    assert f"{old} is '6.4.0': passed over" in result.stdout
    assert lines(result.stdout)["would use"] == f"PATH: {isk} is 8.4.2: fits"


def test_what_is_no_longer_used_is_reported_and_kept(workspace: Workspace) -> None:
    """Otherwise old Bazels would pile up unseen, or vanish under a running server."""
    old = workspace.cache / "debian-x86_64-0123456789ab"
    killed = workspace.cache / "debian-x86_64-ba9876543210"
    for prefix in (old, killed):
        prefix.mkdir(parents=True)
    (old / "bazel").touch()
    result = workspace.run("doctor")
    assert f"{old} (of another version of bazelw; remove it when that is gone)" in result.stdout
    assert f"{killed} (unfinished; the next installation removes it)" in result.stdout
    assert old.exists()
    assert killed.exists()
