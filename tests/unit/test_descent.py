"""The mark by which the descendants of a process are known."""

from __future__ import annotations

import os
import subprocess
import sys

from dist_testing.process.descent import descends_from

# The child lives as long as the standard input of both.
_MARKED = """
import subprocess, sys
from dist_testing.process.descent import mark_descendants

mark_descendants()
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
        assert descends_from(child, marked.pid)
        assert descends_from(marked.pid, marked.pid)
        assert not descends_from(os.getpid(), marked.pid)
        assert not descends_from(child, os.getpid())
        marked.stdin.close()
    assert not descends_from(child, marked.pid)
