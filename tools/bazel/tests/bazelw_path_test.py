"""Which Bazel on PATH is used, and which is passed over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bazelw_testing import MACHINE_FAULT, RELEASED_STATUS, ReleaseServer, Workspace


@pytest.mark.parametrize("version", ["7.4.0", "7.7.1", "7.10.0", "8.0.0", "8.4.2-homebrew"])
def test_a_fitting_bazel_on_path_is_used(workspace: Workspace, version: str) -> None:
    """Otherwise a user who has Bazel would wait for another one."""
    workspace.add_bazel(version)
    result = workspace.run("test", "//a b", "--x=*")
    assert (result.returncode, result.stdout) == (0, f"bazel {version} got: test //a b --x=*\n")
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        *((f'echo "bazel {version}"', version) for version in ("6.4.0", "7.3.2", "10.0.0", "11.1.0", "7")),
        ("echo bazel no_version", "unknown"),
        ("head -c 100000 /dev/zero", "unknown"),
        ("echo some other program called bazel 1.2.3", "unknown"),
        ("echo Error: no network >&2; exit 1", "unknown"),
        ("exit 0", "unknown"),
        # It would read what the user pipes to Bazel.
        ("cat", "unknown"),
    ],
)
def test_another_version_or_program_is_passed_over_with_a_reason(workspace: Workspace, script: str, shown: str) -> None:
    """Otherwise the build would fail in a module file, or another program would get the user's arguments."""
    bazel = workspace.add_program("bazel", f"#!/bin/sh\n{script}\n")
    passed_over = f"passing over {bazel}: its version is '{shown}', and 7.4 up to 9.x is needed"
    workspace.refused("info", passed_over, stdin="bazel 7.7.1\n")


def test_bazelw_does_not_take_itself_for_bazel(workspace: Workspace, server: ReleaseServer) -> None:
    """Otherwise a link or a script named `bazel` that leads to bazelw would start it for ever."""
    (workspace.bin / "bazel").symlink_to(workspace.root / "bazelw")
    workspace.add_program("bazelisk", f'#!/bin/sh\nexec {workspace.root}/bazelw "$@"\n')
    result = workspace.run("info")
    assert result.returncode == RELEASED_STATUS
    assert len(server.paths) == 1
    assert f"passing over {workspace.bin / 'bazelisk'}" in result.stderr


def test_bazelisk_is_told_the_pin_wherever_it_runs(workspace: Workspace, tmp_path: Path) -> None:
    """Otherwise it would choose the newest Bazel in a nested workspace."""
    workspace.add_program("bazelisk", '#!/bin/sh\necho "bazel ${USE_BAZEL_VERSION:-10.0.0}"\n')
    nested = tmp_path / "nested"
    nested.mkdir()
    assert workspace.run("info", cwd=nested).stdout == "bazel 7.7.1\n"
    workspace.env["USE_BAZEL_VERSION"] = "8.4.2"
    assert workspace.run("info", cwd=nested).stdout == "bazel 8.4.2\n"


def test_the_answer_is_remembered_until_the_file_changes(workspace: Workspace) -> None:
    """Otherwise a bazelisk without a network would cost seconds at every start."""
    count = workspace.root / "asked"
    bazel = workspace.add_program("bazel", f'#!/bin/sh\necho asked >>{count}\necho "bazel 6.0.0"\n')
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
    workspace.refused("info", f".bazelversion holds '{pin or ''}'")
