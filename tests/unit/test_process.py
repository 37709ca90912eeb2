"""What a process knows about itself and about others, and what is left of a fork server that was killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dist_testing.core.ground.procfs import children_of, command_of, open_files, stat_of, status_of, threads_of
from dist_testing.core.process.lifetime import current_umask


def test_the_umask_is_read_without_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, files of a rank have another mode than without ranks, or are open to every user for a moment."""
    before = os.umask(0o153)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", lambda mask: pytest.fail(f"the mask was set to {mask:o}"))
            assert current_umask() == 0o153
    finally:
        os.umask(before)


def test_a_name_in_any_bytes_is_no_error() -> None:
    """If this fails, a rank that gives itself such a name ends the runner, which asks for the state of the rank."""
    name = Path("/proc/thread-self/comm")
    before = name.read_bytes()
    name.write_bytes(b"\xff\xfe")
    try:
        assert status_of(os.getpid(), "State", str(threading.get_native_id())) == "R (running)"
    finally:
        name.write_bytes(before)


def test_a_process_that_has_ended_has_no_answer() -> None:
    """If this fails, a process that ends between two looks at it raises an error in the runner."""
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    assert (threads_of(pid), stat_of(pid), status_of(pid, "State"), command_of(pid)) == ([], [], "", "")
    assert children_of(pid) == frozenset()


def test_a_command_is_known_while_the_process_runs() -> None:
    """If this fails, the report of a process that was left behind does not say what it is."""
    with subprocess.Popen(["cat", "-u", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        # A process that has only just been started has no command line yet.
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.read(1)
        assert command_of(process.pid) == "cat -u -"
        assert process.pid in children_of(os.getpid())
        process.stdin.close()


def test_open_files_are_known_by_name() -> None:
    """If this fails, a descriptor that a case leaves open is not found."""
    before = open_files()
    read, write = os.pipe()
    try:
        added = {fd: name for fd, name in open_files().items() if fd not in before}
    finally:
        os.close(read)
        os.close(write)
    assert added.keys() == {read, write}
    assert all(name.startswith("pipe:") for name in added.values())


# A fork server that is killed while a rank of it has ended already; and another child of the runner, which has ended.
_KILLED = """
import os, signal
import psutil
from dist_testing.core.process.orphans import mark_descendants
from dist_testing.core.process.lifetime import become_subreaper
from dist_testing.core.process.orphans import Orphans

become_subreaper()
own = os.fork()
if own == 0:
    os._exit(0)
server = os.fork()
if server == 0:
    mark_descendants()
    if os.fork() == 0:
        os._exit(7)
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(server, 0)
os.waitid(os.P_PID, own, os.WEXITED | os.WNOWAIT)
before = {child.pid: child.status() for child in psutil.Process().children()}
assert len(before) == 2 and set(before.values()) == {psutil.STATUS_ZOMBIE}, before
Orphans(server).remove()
left = [child.pid for child in psutil.Process().children()]
assert left == [own], left
"""


def test_ranks_that_ended_before_their_killed_fork_server_are_reaped() -> None:
    """If this fails, they stay zombies until the run ends; or the runner loses the exit status of a child of a test."""
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    ended = subprocess.run(
        [sys.executable, "-c", _KILLED], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
