"""Messages of bazelw on a machine that lacks something."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from bazelw_testing import (
    LIMIT_S,
    ReleaseServer,
    Workspace,
    end,
    user_namespaces_refusal,
    wait_for_line,
)
from debian_prefix.apt_sources import archives

MACHINE_FAULT = 36

# An apt-get that knows one package, as if it had fetched its index.
APT_THAT_OFFERS = """#!/bin/sh
case "$*" in
*--print-uris*)
  echo "'http://archive/b.deb' bazel-bootstrap_{version}+ds-8%2bb1_amd64.deb 1000 SHA256:00" ;;
*download*)
  echo "E: Failed to fetch b.deb  Connection timed out"; exit 100 ;;
esac
"""

needs_apt_sources = pytest.mark.skipif(
    not archives(Path("/etc/apt")), reason="/etc/apt names no archive, so apt would not be started"
)
USER_NAMESPACES_REFUSAL = user_namespaces_refusal()
needs_user_namespaces = pytest.mark.skipif(USER_NAMESPACES_REFUSAL is not None, reason=str(USER_NAMESPACES_REFUSAL))


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
    ("kernel", "shown"),
    [("Linux riscv64", "'Linux' on 'riscv64'"), ("MINGW64_NT-10.0 x86_64", "'MINGW64_NT-10.0' on")],
)
def test_an_unsupported_machine_is_named(workspace: Workspace, kernel: str, shown: str) -> None:
    """Otherwise a Bazel for another machine would be fetched and fail to start."""
    (workspace.bin / "uname").unlink()
    workspace.add_program("uname", f"#!/bin/sh\necho {kernel}\n")
    result = workspace.run("info")
    assert result.returncode == MACHINE_FAULT
    assert f"there is no prebuilt Bazel for {shown}" in result.stderr
    assert "Put a Bazel (7.4 up to 9.x) on PATH" in result.stderr


def test_macos_gets_a_release_or_nothing(workspace: Workspace) -> None:
    """Otherwise Debian's programs would be unpacked on a Mac."""
    (workspace.bin / "uname").unlink()
    workspace.add_program("uname", "#!/bin/sh\necho Darwin arm64\n")
    result = workspace.run("info")
    assert result.returncode == MACHINE_FAULT
    assert "without the release server there is no Bazel for 'Darwin'" in result.stderr


def test_an_old_python_is_named(workspace: Workspace) -> None:
    """Otherwise the user would see a syntax error."""
    script = 'if [ "$1" = --version ]; then echo Python 3.8.1; exit; fi; exit 1'
    workspace.add_program("python3", f"#!/bin/sh\n{script}\n")
    result = workspace.run("info")
    assert result.returncode == MACHINE_FAULT
    assert "python3 is 'Python 3.8.1', and 3.11 or later is needed" in result.stderr


def test_a_missing_python_is_named(workspace: Workspace) -> None:
    """Otherwise the user would only see that a command was not found."""
    (workspace.bin / "python3").unlink()
    result = workspace.run("info")
    assert result.returncode == MACHINE_FAULT
    assert "python3 is 'missing', and 3.11 or later is needed" in result.stderr
    assert "Install Python 3.11 or later" in result.stderr


def test_a_cache_that_cannot_be_written_is_named(workspace: Workspace, server: ReleaseServer) -> None:
    """Otherwise the user would see a traceback."""
    # Not even root can make directories there.
    workspace.env["XDG_CACHE_HOME"] = "/sys/dist_testing_cache"
    result = workspace.run("info")
    assert result.returncode == MACHINE_FAULT
    assert "the cache cannot be written: '/sys/dist_testing_cache" in result.stderr
    assert "set XDG_CACHE_HOME" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_file_in_the_place_of_the_cache_is_named(workspace: Workspace, server: ReleaseServer, tmp_path: Path) -> None:
    """Otherwise the user would see a traceback."""
    workspace.env["XDG_CACHE_HOME"] = str(tmp_path / "file")
    (tmp_path / "file").touch()
    result = workspace.run("info")
    assert result.returncode == MACHINE_FAULT
    assert f"refused to work on '{tmp_path}/file" in result.stderr
    assert "Traceback" not in result.stderr


@needs_user_namespaces
@pytest.mark.parametrize("is_size_known", [True, False])
def test_a_full_disk_is_named(
    workspace: Workspace, server: ReleaseServer, tmp_path: Path, *, is_size_known: bool
) -> None:
    """Otherwise it would look like a broken download, with or without the check beforehand."""
    server.body = bytes(4 << 20)
    server.length = len(server.body) if is_size_known else None
    disk = tmp_path / "disk"
    disk.mkdir()
    unshare, mount = shutil.which("unshare"), shutil.which("mount")
    script = f'{mount} -t tmpfs -o size=1m none "$XDG_CACHE_HOME" && exec "$@"'
    result = subprocess.run(
        [str(unshare), "-Urm", "sh", "-c", script, "sh", workspace.root / "bazelw", "info"],
        env={**workspace.env, "XDG_CACHE_HOME": str(disk)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert result.returncode == MACHINE_FAULT
    observed = "1 MB are free, and 4 MB are needed" if is_size_known else "nothing more could be"
    assert f"disk full: {observed}" in result.stderr
    assert f"under '{disk}" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_cache_under_tmp_is_refused_for_debians_bazel(debian_workspace: Workspace) -> None:
    """Otherwise tests would fail in the sandbox, and the message would not name the cause."""
    debian_workspace.env["XDG_CACHE_HOME"] = "/tmp/bazelw-test-never-made"
    result = debian_workspace.run("--version")
    assert result.returncode == MACHINE_FAULT
    assert "lies under /tmp" in result.stderr
    assert "Bazel's sandbox has a /tmp of its own" in result.stderr
    shutil.rmtree("/tmp/bazelw-test-never-made")


def test_a_cache_path_that_cannot_be_quoted_is_refused_for_debians_bazel(
    debian_workspace: Workspace, directory_outside_tmp: Path
) -> None:
    """Otherwise the prefix would be built and then not start."""
    debian_workspace.env["XDG_CACHE_HOME"] = f"{directory_outside_tmp}/a:b"
    result = debian_workspace.run("--version")
    assert result.returncode == MACHINE_FAULT
    assert "contains the character ':'" in result.stderr


def test_a_missing_pip_is_named(debian_workspace: Workspace) -> None:
    """Otherwise it would be noticed after 200 MB of packages."""
    script = (debian_workspace.bin / "python3").read_text().replace('"$@"', '-S "$@"')
    debian_workspace.add_program("python3", script)
    del debian_workspace.env["PYTHONPATH"]
    result = debian_workspace.run("--version")
    assert result.returncode == MACHINE_FAULT
    assert "has no pip" in result.stderr
    assert "python3-pip" in result.stderr


@needs_apt_sources
def test_without_any_network_both_causes_are_named(debian_workspace: Workspace) -> None:
    """Otherwise the user would not know what to make reachable."""
    debian_workspace.env["BAZELW_RELEASE_URL"] = "http://127.0.0.1:1"
    result = debian_workspace.run("--version")
    assert result.returncode == MACHINE_FAULT
    assert "http://127.0.0.1:1 is no help: [Errno 111] Connection refused" in result.stderr
    assert "no archive in apt's configuration offers a fitting Bazel" in result.stderr
    assert "forky: 'apt-get' ended with status 100:" in result.stderr
    assert "E: Temporary failure resolving" in result.stderr
    assert debian_workspace.leftovers() == []


@needs_apt_sources
def test_a_suite_that_has_moved_on_is_named(debian_workspace: Workspace) -> None:
    """Otherwise a Bazel would be built that cannot read our module files."""
    debian_workspace.add_program("apt-get", APT_THAT_OFFERS.format(version="10.1.0"))
    result = debian_workspace.run("--version")
    assert result.returncode == MACHINE_FAULT
    assert "forky: has bazel-bootstrap '10.1.0+ds-8+b1'" in result.stderr
    assert "sid: has bazel-bootstrap '10.1.0+ds-8+b1'" in result.stderr
    assert "(7.4 up to 9.x) is expected" in result.stderr


@needs_apt_sources
def test_a_failed_package_download_leaves_nothing(debian_workspace: Workspace) -> None:
    """Otherwise the next start would take a half-built prefix for a whole one."""
    debian_workspace.add_program("apt-get", APT_THAT_OFFERS.format(version="7.7.1"))
    result = debian_workspace.run("--version")
    assert result.returncode == MACHINE_FAULT
    assert "E: Failed to fetch b.deb  Connection timed out" in result.stderr
    assert debian_workspace.leftovers() == []


@needs_apt_sources
def test_the_lock_is_held_until_the_children_of_a_killed_run_are_gone(
    debian_workspace: Workspace, tmp_path: Path
) -> None:
    """Otherwise the next run would delete files that a running apt-get still writes."""
    started, may_end = tmp_path / "started", tmp_path / "may_end"
    os.mkfifo(started)
    os.mkfifo(may_end)
    once = f"mkdir {tmp_path}/once 2>/dev/null && echo >{started} && cat {may_end}"
    debian_workspace.add_program("apt-get", f"#!/bin/sh\n{once}\necho E: no network\nexit 100\n")
    first = debian_workspace.start("--version")
    started.read_text()
    os.kill(int((debian_workspace.cache / "lock").read_text()), signal.SIGKILL)

    second = debian_workspace.start("--version")
    wait_for_line(second, "another run")
    may_end.write_text("now")
    assert end(second)[0] == MACHINE_FAULT
    end(first)
    assert debian_workspace.leftovers() == []


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
