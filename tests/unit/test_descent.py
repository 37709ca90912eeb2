"""What is left of a fork server that was killed. tests/process/test_interrupts.py has what its ranks had started."""

from __future__ import annotations

import os
import subprocess
import sys

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
