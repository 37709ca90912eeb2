"""The mark by which the descendants of a process are known."""

from __future__ import annotations

import os
import subprocess
import sys

from dist_testing.core.process.orphans import mark_of

# The child lives as long as the standard input of both.
_MARKED = """
import subprocess, sys
from dist_testing.core.process.orphans import mark_descendants, mark_rank

mark_rank(5)
mark_descendants()
mark_rank(70000)
child = subprocess.Popen([sys.executable, "-c", "input()"], env={}, start_new_session=True)
print(child.pid, flush=True)
child.wait()
"""


def test_descendants_are_known_whatever_they_inherit() -> None:
    """If this fails, a process without an environment outlives a killed fork server, or a foreign one is killed."""
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    with subprocess.Popen(
        [sys.executable, "-c", _MARKED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": path},
        text=True,
    ) as marked:
        assert marked.stdin is not None
        assert marked.stdout is not None
        child = int(marked.stdout.readline())
        assert mark_of(child) == (marked.pid, 70000)
        assert mark_of(marked.pid) == (marked.pid, 70000)
        assert mark_of(os.getpid())[0] != marked.pid
        marked.stdin.close()
    assert mark_of(child) == (None, None)


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
