"""Fetching the pinned release, and what happens when the server misbehaves."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from bazelw_testing import RELEASED_BAZEL, RELEASED_STATUS, ReleaseServer, Workspace


def test_the_release_is_fetched_once_and_run(workspace: Workspace, server: ReleaseServer) -> None:
    """Otherwise nothing works on an ordinary machine."""
    first = workspace.run("test", "//...")
    second = workspace.run("test", "//...")
    assert first.returncode == second.returncode == RELEASED_STATUS
    assert len(server.paths) == 1
    assert server.paths[0].startswith("/7.7.1/bazel-7.7.1-linux-")
    assert f"fetching Bazel from {server.url}" in first.stderr
    assert second.stderr == ""
    assert workspace.leftovers() == []


def test_arguments_directory_and_standard_input_reach_bazel(
    workspace: Workspace, server: ReleaseServer, tmp_path: Path
) -> None:
    """Otherwise relative labels, quoted arguments or piped input would be lost."""
    below = workspace.root / "some/package"
    below.mkdir(parents=True)
    result = workspace.run("read-stdin", "a b", "", "*", cwd=below, stdin="piped")
    assert result.stdout == (f"released bazel in {below} got:\n<read-stdin>\n<a b>\n<>\n<*>\npiped")


def test_a_link_to_bazelw_works(workspace: Workspace, server: ReleaseServer, tmp_path: Path) -> None:
    """Otherwise a user could not have it on PATH under another name."""
    link = tmp_path / "elsewhere"
    link.symlink_to(workspace.root / "bazelw")
    linked = Workspace(tmp_path, workspace.bin, workspace.env)
    (tmp_path / "bazelw").symlink_to(link)
    assert linked.run("info").returncode == RELEASED_STATUS


def test_a_wrong_checksum_is_fatal_and_names_both_sums(workspace: Workspace, server: ReleaseServer) -> None:
    """Otherwise a tampered Bazel would run, or the tampering would go unnoticed."""
    server.body = RELEASED_BAZEL.replace(b"exit 7", b"exit 8")
    sums = [hashlib.sha256(body).hexdigest() for body in (server.body, RELEASED_BAZEL)]
    assert "Debian" not in workspace.refused("info", *sums).stderr


def test_a_download_that_breaks_off_is_fatal(workspace: Workspace, server: ReleaseServer) -> None:
    """Otherwise half a Bazel would be kept."""
    server.length = 10 * len(server.body)
    arrived = f"{len(server.body)} of {server.length} bytes arrived"
    workspace.refused("info", "broke off", arrived, "Run again")


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_server_without_the_file_is_passed_over_with_its_status(
    workspace: Workspace, server: ReleaseServer, status: int
) -> None:
    """Otherwise a proxy that forbids the server would keep Debian's Bazel from being used."""
    server.status = status
    answer = f"{server.url} is no help: it answers {status}"
    workspace.refused("info", answer, "apt-get, dpkg-deb, tar not found on PATH")


def test_a_server_that_never_answers_is_given_up(workspace: Workspace, server: ReleaseServer) -> None:
    """Otherwise a firewall that drops packets would look like a hang."""
    server.may_answer.clear()
    result = workspace.refused("info", "no answer within 6 s", "bazelw: asking the release server (1 s)\n")
    assert not {"\r", "\033"} & set(result.stderr)


def test_an_empty_address_skips_the_server(workspace: Workspace) -> None:
    """Otherwise Debian's Bazel could not be chosen on a connected machine."""
    workspace.env["BAZELW_RELEASE_URL"] = ""
    workspace.refused("info", "BAZELW_RELEASE_URL is empty: the release server is not asked")


def test_a_pin_without_a_checksum_is_refused(workspace: Workspace, server: ReleaseServer) -> None:
    """Otherwise a new pin would be fetched unverified."""
    (workspace.root / ".bazelversion").write_text("7.6.0\n")
    workspace.refused("info", "no checksum is pinned for 'bazel-7.6.0-linux-")
    assert server.paths == []
