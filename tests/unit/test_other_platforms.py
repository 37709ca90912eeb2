"""The library on macOS, simulated: an interpreter without the functions that Python has only on Linux."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# psutil and torch are imported first: their builds for Linux do not import when the platform is another one.
_WITHOUT_LINUX = """
import ctypes
import os
import select
import signal
import sys

import psutil
import torch

for module, names in (
    (os, ("pidfd_open", "P_PIDFD", "memfd_create", "eventfd", "eventfd_read", "eventfd_write", "EFD_CLOEXEC",
          "EFD_NONBLOCK", "sched_getaffinity", "RTLD_NOLOAD")),
    (signal, ("SIGRTMIN", "SIGRTMAX", "pidfd_send_signal", "sigtimedwait", "sigwaitinfo")),
    (select, ("epoll",)),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)


class WithoutPrctl(ctypes.CDLL):
    def __getattr__(self, name):
        if name == "prctl":
            raise AttributeError(name)
        return super().__getattr__(name)


ctypes.CDLL = WithoutPrctl
sys.platform = "darwin"
"""
_TESTS = """
import unittest

import torch
import torch.distributed as dist

import dist_testing
# Authors edit test files on laptops; an editor cannot help with a library that does not import.
import dist_testing.attach.pytest_ranks
import dist_testing.core.pytest.plugin


class OnThreads(dist_testing.MultiThreadedTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test_sum(self):
        value = torch.ones(1)
        dist.all_reduce(value)
        self.assertEqual(value.item(), 2.0)
        print(f"rank {self.rank} has the sum")


class OnProcesses(dist_testing.MultiProcessTestCase):
    world_size = 2

    def test_nothing(self):
        pass


unittest.main(verbosity=2)
"""


def test_threads_work_and_processes_say_that_they_need_linux(tmp_path: Path) -> None:
    """An AttributeError from inside a launcher does not say which tests can run on a laptop."""
    # A file: threads and processes look for their main module there.
    path = tmp_path / "test_file.py"
    path.write_text(_WITHOUT_LINUX + _TESTS, encoding="utf-8")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(path)]
    ended = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 1
    assert all(f"rank {rank} has the sum" in ended.stdout for rank in range(2)), "two threads print at the same time"
    assert "\ntest_sum (__main__.OnThreads.test_sum) ... ok\n" in f"\n{ended.stderr}"
    assert "Ranks that are processes cannot be started on darwin: Python has no pidfd_open" in ended.stderr
    assert "derive its class from MultiThreadedTestCase" in ended.stderr
    assert "AttributeError" not in ended.stderr
