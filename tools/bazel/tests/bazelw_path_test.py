"""Which Bazel on PATH is used, and which is passed over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bazelw_testing import RELEASED_STATUS, ReleaseServer, Workspace

MACHINE_FAULT = 36


@pytest.mark.parametrize("version", ["7.4.0", "7.7.1", "7.10.0", "8.0.0", "8.4.2-homebrew"])
def test_a_fitting_bazel_on_path_is_used(workspace: Workspace, version: str) -> None:
    """Otherwise a user who has Bazel would wait for another one."""
    workspace.add_bazel(version)
    result = workspace.run("test", "//a b", "--x=*")
    assert (result.returncode, result.stdout) == (0, f"bazel {version} got: test //a b --x=*\n")
    assert result.stderr == ""


@pytest.mark.parametrize("version", ["6.4.0", "7.3.2", "10.0.0", "11.1.0", "no_version", "7", ""])
def test_another_version_is_passed_over_with_a_reason(workspace: Workspace, version: str) -> None:
    """Otherwise the build would fail later, in the middle of a module file."""
    bazel = workspace.add_bazel(version)
    result = workspace.run("info")
    assert result.returncode == MACHINE_FAULT
    shown = version if version[:1].isdigit() else "unknown"
    expected = f"passing over {bazel}: its version is '{shown}', and 7.4 up to 9.x is needed"
    assert expected in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("head -c 100000 /dev/zero", id="a flood of zeros"),
        pytest.param("echo some other program called bazel 1.2.3", id="text"),
        pytest.param("echo Error: no network >&2; exit 1", id="failure"),
        pytest.param("exit 0", id="silence"),
        pytest.param("cat", id="reads standard input"),
    ],
)
def test_a_program_that_tells_no_version_is_passed_over(workspace: Workspace, script: str) -> None:
    """Otherwise any program of that name would be started with the user's arguments."""
    workspace.add_program("bazel", f"#!/bin/sh\n{script}\n")
    result = workspace.run("info", stdin="bazel 7.7.1\n")
    assert result.returncode == MACHINE_FAULT
    assert "its version is 'unknown'" in result.stderr


def test_bazelw_does_not_take_itself_for_bazel(workspace: Workspace, server: ReleaseServer) -> None:
    """Otherwise a link or a script named `bazel` that leads to bazelw would start it for ever."""
    (workspace.bin / "bazel").symlink_to(workspace.root / "bazelw")
    workspace.add_program("bazelisk", f'#!/bin/sh\nexec {workspace.root}/bazelw "$@"\n')
    result = workspace.run("info")
    assert result.returncode == RELEASED_STATUS
    assert len(server.paths) == 1
    assert "passing over" in result.stderr
    assert str(workspace.bin / "bazelisk") in result.stderr


def test_bazelisk_is_told_the_pin_wherever_it_runs(workspace: Workspace, tmp_path: Path) -> None:
    """Otherwise it would choose the newest Bazel in a nested workspace."""
    report = '#!/bin/sh\necho "bazel ${USE_BAZEL_VERSION:-10.0.0}"\n'
    workspace.add_program("bazelisk", report)
    nested = tmp_path / "nested"
    nested.mkdir()
    assert workspace.run("info", cwd=nested).stdout == "bazel 7.7.1\n"
    workspace.env["USE_BAZEL_VERSION"] = "8.4.2"
    assert workspace.run("info", cwd=nested).stdout == "bazel 8.4.2\n"


def test_the_answer_is_remembered_until_the_file_changes(workspace: Workspace) -> None:
    """Otherwise a bazelisk without a network would cost seconds at every start."""
    count = workspace.root / "asked"
    script = f'#!/bin/sh\necho asked >>{count}\necho "bazel 6.0.0"\n'
    bazel = workspace.add_program("bazel", script)
    for _ in range(3):
        workspace.run("info")
    assert count.read_text() == "asked\n"
    workspace.add_bazel("7.7.1")
    os.utime(bazel, ns=(1, 1))
    assert workspace.run("info").stdout == "bazel 7.7.1 got: info\n"


def test_without_home_and_without_bazel_the_way_out_is_named(workspace: Workspace) -> None:
    """Otherwise the cache would end up in the root directory."""
    del workspace.env["HOME"]
    result = workspace.run("info")
    assert result.returncode == MACHINE_FAULT
    assert "neither HOME nor XDG_CACHE_HOME names a directory" in result.stderr


@pytest.mark.parametrize("pin", ["", "latest", "7.7.1 # note", None])
def test_a_damaged_pin_is_refused(workspace: Workspace, pin: str | None) -> None:
    """Otherwise it would become part of an address and of a path."""
    file = workspace.root / ".bazelversion"
    file.unlink()
    if pin is not None:
        file.write_text(pin)
    workspace.add_bazel("7.7.1")
    result = workspace.run("info")
    assert result.returncode == MACHINE_FAULT
    assert f".bazelversion holds '{pin or ''}'" in result.stderr
