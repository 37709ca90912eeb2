"""Starts the processes under test from one process that has torch and the library loaded already.

    test  --- what to run --->  starter's process  --- fork --->  runner  --->  fork server  --->  ranks
          <-- its pid ----------

Loading torch takes longer than most of these tests, and loading the library takes half of what is left. A forked child
is still a real process: a main program of its own, in its own session, with its own environment and exit. The process
in the middle adopts every orphan process below it, so that the tests see all of them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from dist_testing.core.process.lifetime import become_subreaper

# Limit in seconds for a child that works: half of the time that Bazel gives the test, so that the test tells what the
# child was doing, and far above what it needs, also with a twentieth of a CPU.
LIMIT_S = int(os.environ.get("TEST_TIMEOUT", "900")) / 2
# Size of one message: an environment and a command line.
_MESSAGE_BYTES = 1 << 17
# Settings of the test's own runner, which its children must not inherit.
_OURS = ("BAZEL_", "COVERAGE", "DIST_", "PYTEST_", "PYTHONSAFEPATH", "RUNFILES_", "TEST", "XML_OUTPUT_FILE")
# Modules that forked children need not load; a fresh child loads all by itself. Importing these modules of the library
# reads nothing of the process. The plugin is not here: pytest rewrites the asserts of a plugin when it loads it.
_LOADED = (
    "pytest",
    "torch.distributed",
    "dist_testing.core.unittest.continuous",
    "dist_testing.core.unittest.process",
    "dist_testing.core.bazel.main",
    "dist_testing.core.pytest.marked_items",
)
# torch's CUDA builds set it when a test imports torch._dynamo; the children would take it for the user's value.
_TORCHS = ("TORCHINDUCTOR_CACHE_DIR",)


@dataclass(frozen=True, slots=True)
class Child:
    """A process that was started, and its log."""

    starter: Starter
    pid: int  # its number, which stays valid until the process has been reaped
    folder: Path  # its working directory
    log_file: Path  # the output of the process and of all processes below it

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """Wait for its end; return the exit code, which for a signal is its negative number."""
        assert wait_ended([self.pid], limit_s), f"pid {self.pid} is still running after {limit_s} s:\n{self.log}"
        return self.starter.reap(self.pid)

    def send_signal(self, number: int) -> None:
        """Signal only this process."""
        os.kill(self.pid, number)

    def send_group_signal(self, number: int) -> None:
        """Signal the whole process group, as Bazel does at a timeout."""
        os.killpg(self.pid, number)

    @property
    def log(self) -> str:
        """The output so far."""
        return self.log_file.read_text(encoding="utf-8", errors="replace")


class Starter:
    """Starts Python processes below one that has torch and the library loaded. Use as a context manager."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._started = 0
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from tests.support.starter import serve; serve({theirs.fileno()})"],
                pass_fds=[theirs.fileno()],
                env=_base_env() | {"OPENBLAS_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                # Signals to the test's own group must not reach it: it ends when the test closes the channel.
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
        node: Sequence[int] = (),
    ) -> Child:
        """Start Python as `python <arguments>` would.

        Args:
            arguments: `["-m", module, ...]` or `[file, ...]`.
            folder: Working directory. Temporary files are below it, too.
            env: Added to an environment without any settings of a test runner; None removes a variable.
            limits: Numbers of `resource.RLIMIT_*` to soft and hard limit.
            fresh: Whether to start a new interpreter, without torch and the library.
            node: Descriptors of the simulated node to start it on, as `Nodes.of` returns them.
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
            "node": [f"/proc/{os.getpid()}/fd/{fd}" for fd in node],
        }
        return Child(self, self._ask(message), folder, log_file)

    def reap(self, pid: int) -> int:
        """Return the exit code of a child that has ended."""
        return self._ask({"do": "reap", "pid": pid})

    def pids_left(self) -> list[int]:
        """Return every living process below the starter's: runners, fork servers, ranks, and their children."""
        return [child.pid for child in living_below(self._process.pid)]

    def wait_nothing_left(self, limit_s: float) -> None:
        """Wait until every process below the starter's has ended, in any session.

        An AssertionError names one that has not, and kills it so that it does not disturb the next test.
        """
        deadline = time.monotonic() + limit_s
        while pids := self.pids_left():
            if not wait_ended(pids, deadline - time.monotonic()):
                left = _kill_below(self._process.pid)
                raise AssertionError(f"still running after {limit_s} s, now killed: {left}")

    def _ask(self, message: Mapping[str, Any]) -> int:
        self._channel.send(json.dumps(message).encode())
        answer = self._channel.recv(_MESSAGE_BYTES)
        assert answer, f"the starter's process has ended, with exit status {self._process.wait(LIMIT_S)}"
        return int(answer)


def wait_ended(pids: Sequence[int], limit_s: float) -> bool:
    """Wait until all of these processes have ended; return False if the limit is reached first."""
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


def read_until(is_done: Callable[[], bool], read: Callable[[], None], fd: int, pid: int, limit_s: float) -> bool:
    """Call `read` each time a descriptor can be read, until done; False at the limit, or if the process ends first."""
    deadline = time.monotonic() + limit_s
    pidfd = os.pidfd_open(pid)
    try:
        poller = select.poll()
        for one in (fd, pidfd):
            poller.register(one, select.POLLIN)
        while not is_done():
            if fd not in [ready for ready, _ in poller.poll(1000 * max(0.0, deadline - time.monotonic()))]:
                return False
            read()
    finally:
        os.close(pidfd)
    return True


def serve(channel_fd: int) -> None:
    """Act as the process in the middle until the test closes the channel.

    In a forked child, return after its program.
    """
    for name in _LOADED:
        importlib.import_module(name)
    become_subreaper()
    # A child skips frozen objects at its end; otherwise it would visit all objects of torch once more.
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
    """Become the process of the message. It ends like a main program: at its last line or by SystemExit."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    log = os.open(message["log"], os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.chdir(message["folder"])
    for number, limit in message["limits"].items():
        resource.setrlimit(int(number), (limit, limit))
    if message["node"]:
        from dist_testing.nodes.namespaces import enter

        enter([os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in message["node"]])
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
    env = {name: value for name, value in os.environ.items() if not name.startswith((*_OURS, *_TORCHS))}
    # Includes the entries of sys.path: the children import this package and what it needs.
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    # Installed plugins are not under test, and some take a second to load.
    return env | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def living_below(pid: int) -> list[psutil.Process]:
    """Return every process below this one of which a thread still runs."""
    return [child for child in psutil.Process(pid).children(recursive=True) if is_alive(child)]


def _kill_below(pid: int) -> list[str]:
    """Kill every process below this one, and return their command lines, shortened."""
    killed = []
    # Repeat until none is left: a process that is still alive may have started another.
    while living := living_below(pid):
        for child in living:
            name = f"pid {child.pid}"
            with contextlib.suppress(psutil.NoSuchProcess):
                name = f"{' '.join(child.cmdline())[:100]} ({name})"
            killed.append(name)
            # Also one whose main thread has ended: it has no command line.
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
        psutil.wait_procs(living, timeout=1)
    return killed


def is_alive(process: psutil.Process) -> bool:
    """Return whether a thread of a process still runs."""
    try:
        # A process whose main thread has ended is called a zombie, whatever its other threads do.
        return process.status() != psutil.STATUS_ZOMBIE or len(os.listdir(f"/proc/{process.pid}/task")) > 1
    except (psutil.NoSuchProcess, FileNotFoundError):
        return False
