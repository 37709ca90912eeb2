"""Messages of bazelw on a machine that lacks something."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from bazelw_testing import ReleaseServer, Workspace, end
from debian_prefix.apt_sources import archives

needs_apt_sources = pytest.mark.skipif(
    not archives(Path("/etc/apt")), reason="/etc/apt names no archive, so apt would not be started"
)


@pytest.fixture
def debian_workspace(workspace: Workspace, directory_outside_tmp: Path, tmp_path: Path) -> Workspace:
    """A workspace on a machine that looks like Debian, without a release server."""
    workspace.env["XDG_CACHE_HOME"] = str(directory_outside_tmp)
    workspace.env["BAZELW_RELEASE_URL"] = ""
    (tmp_path / "modules/pip").mkdir(parents=True)
    (tmp_path / "modules/pip/__init__.py").touch()
    workspace.env["PYTHONPATH"] = str(tmp_path / "modules")
    for name in ("apt-get", "dpkg-deb", "tar"):
        workspace.add_program(name, "#!/bin/sh\necho 'E: Temporary failure resolving'; exit 100\n")
    return workspace


@pytest.mark.parametrize(
    ("kernel", "shown"), [("Linux riscv64", "'Linux' on 'riscv64'"), ("MINGW64_NT-10.0 x86_64", "'MINGW64_NT-10.0' on")]
)
def test_an_unsupported_machine_is_named(workspace: Workspace, kernel: str, shown: str) -> None:
    """Otherwise a Bazel for another machine would be fetched and fail to start."""
    (workspace.bin / "uname").unlink()
    workspace.add_program("uname", f"#!/bin/sh\necho {kernel}\n")
    workspace.refused("info", f"there is no prebuilt Bazel for {shown}", "Put a Bazel (7.4 up to 9.x) on PATH")


def test_an_old_python_is_named(workspace: Workspace) -> None:
    """Otherwise the user would see a syntax error."""
    script = 'if [ "$1" = --version ]; then echo Python 3.8.1; exit; fi; exit 1'
    workspace.add_program("python3", f"#!/bin/sh\n{script}\n")
    workspace.refused("info", "python3 is 'Python 3.8.1', and 3.11 or later is needed")


def test_a_cache_that_cannot_be_written_is_named(workspace: Workspace, server: ReleaseServer) -> None:
    """Otherwise the user would see a traceback."""
    # Not even root can make directories there.
    workspace.env["XDG_CACHE_HOME"] = "/sys/dist_testing_cache"
    told = ("the cache cannot be written: '/sys/dist_testing_cache", "set XDG_CACHE_HOME")
    assert "Traceback" not in workspace.refused("info", *told).stderr


def test_a_cache_under_tmp_is_refused_for_debians_bazel(debian_workspace: Workspace) -> None:
    """Otherwise tests would fail in the sandbox, and the message would not name the cause."""
    debian_workspace.env["XDG_CACHE_HOME"] = "/tmp/bazelw-test-never-made"
    debian_workspace.refused("--version", "lies under /tmp", "Bazel's sandbox has a /tmp of its own")
    shutil.rmtree("/tmp/bazelw-test-never-made")


def test_a_missing_pip_is_named(debian_workspace: Workspace) -> None:
    """Otherwise it would be noticed after 200 MB of packages."""
    script = (debian_workspace.bin / "python3").read_text().replace('"$@"', '-S "$@"')
    debian_workspace.add_program("python3", script)
    del debian_workspace.env["PYTHONPATH"]
    debian_workspace.refused("--version", "has no pip", "python3-pip")


@needs_apt_sources
def test_without_any_network_both_causes_are_named(debian_workspace: Workspace) -> None:
    """Otherwise the user would not know what to make reachable."""
    debian_workspace.env["BAZELW_RELEASE_URL"] = "http://127.0.0.1:1"
    debian_workspace.refused(
        "--version",
        "http://127.0.0.1:1 is no help: [Errno 111] Connection refused",
        "no archive in apt's configuration offers a fitting Bazel",
        "forky: 'apt-get' ended with status 100:",
        "E: Temporary failure resolving",
    )


@needs_apt_sources
def test_an_ended_run_ends_its_children(debian_workspace: Workspace, tmp_path: Path) -> None:
    """Otherwise apt-get would go on writing into a cache that its run has cleaned up."""
    started, never = tmp_path / "started", tmp_path / "never"
    os.mkfifo(started)
    os.mkfifo(never)
    debian_workspace.add_program("apt-get", f"#!/bin/sh\necho $$ >{started}\nexec cat {never}\n")
    process = debian_workspace.start("--version")
    child = int(started.read_text())
    os.kill(int((debian_workspace.cache / "lock").read_text()), signal.SIGTERM)
    status, stdout, _ = end(process)
    assert (status, stdout) == (128 + signal.SIGTERM, "")
    assert not Path(f"/proc/{child}").exists()
    assert debian_workspace.leftovers() == []
