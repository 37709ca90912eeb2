"""Starts the processes that tests look at, from one process that has torch loaded already.

    test  --- what to run --->  starter's process  --- fork --->  runner  --->  template  --->  ranks
          <-- its pid ----------

Loading torch takes longer than most of these tests. What is forked is a real process all the same: a main program of
its own, in its own session, with its own environment and exit. The process in the middle adopts whatever is left
behind below it, so nothing can get out of sight.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from dist_testing.process.lifetime import become_subreaper

__all__ = ["LIMIT_S", "Child", "Starter", "wait_ended"]

# For a child that does what it should; far above what it takes on a busy machine. Seconds.
LIMIT_S = 120.0
# Of one message: an environment and a command line.
_MESSAGE_BYTES = 1 << 17
# Settings of the test's own runner, which its children must not inherit.
_OURS = ("BAZEL_", "COVERAGE", "DIST_", "PYTEST_", "PYTHONSAFEPATH", "RUNFILES_", "TEST", "XML_OUTPUT_FILE")


@dataclass(frozen=True, slots=True)
class Child:
    """A process that was started, and its log.

    Attributes:
        pid: Its number. The process stays known by it until it has been waited for.
        folder: Its working directory.
        log_file: What it and everything below it printed.
    """

    starter: Starter
    pid: int
    folder: Path
    log_file: Path

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """Wait for its end.

        Returns:
            The exit code; for a signal, its negative number.
        """
        assert wait_ended([self.pid], limit_s), f"pid {self.pid} is still running after {limit_s} s:\n{self.log}"
        return self.starter.reap(self.pid)

    def send_signal(self, number: int) -> None:
        """Signal the process alone."""
        os.kill(self.pid, number)

    def send_group_signal(self, number: int) -> None:
        """Signal the whole process group, as Bazel does at a timeout."""
        os.killpg(self.pid, number)

    @property
    def log(self) -> str:
        """What has been printed by now."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")


class Starter:
    """Starts Python processes below one that has torch loaded. Use as a context manager."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._started = 0
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    f"from tests.support.starter import serve; serve({theirs.fileno()})",
                ],
                pass_fds=[theirs.fileno()],
                env=_base_env() | {"OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                # Signals to the test's own group are not for it: it ends when the test closes the channel.
                start_new_session=True,
            )

    def __enter__(self) -> Starter:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()
        self._process.wait(LIMIT_S)

    def start(
        self,
        arguments: Sequence[str],
        folder: Path,
        *,
        env: Mapping[str, str | None] | None = None,
        limits: Mapping[int, int] | None = None,
        fresh: bool = False,
    ) -> Child:
        """Start Python as `python <arguments>` would.

        Args:
            arguments: `["-m", module, ...]` or `[file, ...]`.
            folder: Working directory. Temporary files go below it, too.
            env: Added to an environment without any settings of a test runner; None removes a variable.
            limits: Numbers of `resource.RLIMIT_*` to soft and hard limit.
            fresh: Whether it is to be a new interpreter, without torch.
        """
        self._started += 1
        log_file = folder / f"log-{self._started}.txt"
        log_file.touch()
        (folder / "tmp").mkdir(exist_ok=True)
        given = {**_base_env(), "TMPDIR": str(folder / "tmp"), **(env or {})}
        message = {
            "do": "start",
            "arguments": list(arguments),
            "folder": str(folder),
            "log": str(log_file),
            "env": {name: value for name, value in given.items() if value is not None},
            "limits": {str(number): limit for number, limit in (limits or {}).items()},
            "fresh": fresh,
        }
        return Child(self, self._ask(message), folder, log_file)

    def reap(self, pid: int) -> int:
        """The exit code of a child that has ended."""
        return self._ask({"do": "reap", "pid": pid})

    def pids_left(self) -> list[int]:
        """Every living process below the starter's: runners, templates, ranks, and what those have started."""
        return [child.pid for child in living_below(self._process.pid)]

    def wait_nothing_left(self, limit_s: float) -> None:
        """Wait until every process below the starter's has ended, in whatever session it is.

        Raises:
            AssertionError: If one has not; names it, and kills it for the sake of the next test.
        """
        deadline = time.monotonic() + limit_s
        while pids := self.pids_left():
            if not wait_ended(pids, deadline - time.monotonic()):
                left = _kill_below(self._process.pid)
                raise AssertionError(f"still running after {limit_s} s, now killed: {left}")

    def _ask(self, message: Mapping[str, Any]) -> int:
        self._channel.send(json.dumps(message).encode())
        answer = self._channel.recv(_MESSAGE_BYTES)
        assert answer, "the starter's process has ended"
        return int(answer)


def wait_ended(pids: Sequence[int], limit_s: float) -> bool:
    """Wait until all of these processes have ended; False if the limit comes first."""
    deadline = time.monotonic() + limit_s
    with contextlib.ExitStack() as stack:
        waiting = set()
        poller = select.poll()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                pidfd = os.pidfd_open(pid)
                stack.callback(os.close, pidfd)
                poller.register(pidfd, select.POLLIN)
                waiting.add(pidfd)
        while waiting:
            ended = poller.poll(1000 * max(0.0, deadline - time.monotonic()))
            if not ended:
                return False
            for pidfd, _ in ended:
                poller.unregister(pidfd)
                waiting.remove(pidfd)
    return True


def serve(channel_fd: int) -> None:
    """Be the process in the middle, until the test closes the channel. Returns in no process but that one."""
    import pytest
    import torch.distributed

    # Loaded for the processes that are forked.
    del pytest, torch
    become_subreaper()
    # What is frozen is left alone at the end of a child, which would else go through all of torch once more.
    gc.freeze()
    channel = socket.socket(fileno=channel_fd)
    while packet := channel.recv(_MESSAGE_BYTES):
        message = json.loads(packet)
        if message["do"] == "reap":
            _, status = os.waitpid(message["pid"], 0)
            channel.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if pid == 0:
            channel.close()
            _become(message)
            return
        channel.send(str(pid).encode())
    _kill_below(os.getpid())


def _become(message: Mapping[str, Any]) -> None:
    """Be what the message says. Ends as a main program does, by falling off its end or by SystemExit."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    log = os.open(message["log"], os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(message["folder"])
    for number, limit in message["limits"].items():
        resource.setrlimit(int(number), (limit, limit))
    arguments = message["arguments"]
    if message["fresh"]:
        os.execve(sys.executable, [sys.executable, *arguments], message["env"])
    os.environ.clear()
    os.environ.update(message["env"])
    if arguments[0] == "-m":
        sys.path.insert(0, message["folder"])
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        runpy.run_path(arguments[0], run_name="__main__")


def _base_env() -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    # Also what only sys.path knows: the children import this package and what it needs.
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    # Plugins that happen to be installed here are not under test, and some take a second to load.
    return env | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def living_below(pid: int) -> list[psutil.Process]:
    """Every process below this one that is not just waiting to be reaped."""
    return [child for child in psutil.Process(pid).children(recursive=True) if _is_alive(child)]


def _kill_below(pid: int) -> list[str]:
    """Kill every process below this one; their command lines, shortened."""
    killed = []
    # Until none is left: one that is not dead yet may have started another.
    while living := living_below(pid):
        for child in living:
            with contextlib.suppress(psutil.NoSuchProcess):
                killed.append(f"{' '.join(child.cmdline())[:100]} (pid {child.pid})")
                child.kill()
        psutil.wait_procs(living, timeout=1)
    return killed


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
