"""Starts contestants and gives them turns (see `contestants.turns`)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from contestants.turns import Order
from figures import BenchError

BENCH = Path(__file__).resolve().parent
# Limit for one answer. A world of torch's own class takes longest: some seconds per rank, on a busy machine. Seconds.
_ANSWER_LIMIT_S = 900.0
# Limit from the end of the last case to the end of the process; torch's continuous class joins its ranks then. Seconds.
_EXIT_LIMIT_S = 120.0
_QUOTED_LINES = 60


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to run the cases."""

    name: str  # its name in the tables
    command: tuple[str, ...]  # its command line, after the interpreter
    env: tuple[tuple[str, str], ...] = ()  # variables that it needs beside the bench's own


@dataclass(frozen=True, slots=True)
class Turn:
    """One case, as a contestant ran it."""

    case: str  # its name
    started_s: float  # time when the contestant was told to start, on the monotonic clock
    ended_s: float  # time when it was ready for the next case
    verdict: Mapping[str, Any]  # the verdict; empty if the contestant has none

    @property
    def duration_s(self) -> float:
        """The cost of the case in seconds."""
        return self.ended_s - self.started_s


@dataclass(frozen=True, slots=True)
class Run:
    """A contestant's run in a contest."""

    turns: tuple[Turn, ...]  # one per case, in order
    session_s: float  # seconds from the start of its process to its end, without the waits for turns
    folder: Path  # the files of its ranks


def pytest_command(file: str, *options: str) -> tuple[str, ...]:
    """Return the command of a pytest session with the library's plugin and no other, without any configuration."""
    folder = BENCH / "contestants"
    plain = ("-q", "-c", os.devnull, "--rootdir", str(folder), "-p", "no:cacheprovider")
    return ("-m", "pytest", *plain, "-p", "dist_testing.core.pytest.plugin", *options, str(folder / file))


class _Process:
    """A contestant's process."""

    def __init__(self, contestant: Contestant, order: Order, output: IO[bytes]) -> None:
        self._contestant = contestant
        self._cases = order.cases
        self._folder = order.folder
        self._output = output
        listen_fd, self._go_fd = os.pipe()
        self._hear_fd, tell_fd = os.pipe()
        env = {
            **os.environ,
            # The contestants find their packages in the same places as the bench (an environment, runfiles).
            "PYTHONPATH": os.pathsep.join([str(BENCH), *filter(None, sys.path)]),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            # Finding an address by the host's name is slow on some machines, and is not what the bench compares.
            "GLOO_SOCKET_IFNAME": "lo",
            # One thread per rank for all contestants; the library sets that by itself.
            "OMP_NUM_THREADS": "1",
            # torch's classes leave files behind; they are removed with the folder.
            "TMPDIR": str(order.folder / "tmp"),
            **dict(contestant.env),
            **order.to_env(listen_fd, tell_fd),
        }
        self._started_s = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, *contestant.command],
            env=env,
            # Python looks here first, so in a checkout each contestant would find that checkout's library.
            cwd=BENCH,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(listen_fd, tell_fd),
            start_new_session=True,
        )
        os.close(listen_fd)
        os.close(tell_fd)
        self._buffer = b""
        self._ready_s = 0.0
        self._waited_s = 0.0
        self._ended_s = 0.0
        self._turns: list[Turn] = []

    def wait_ready(self) -> None:
        """Wait until it has imported everything and waits for its first turn."""
        self._hear("imported")
        self._ready_s = self._hear("waiting")["at_s"]

    @property
    def has_cases(self) -> bool:
        """Whether it has more cases to run."""
        return len(self._turns) < len(self._cases)

    def take_turn(self) -> None:
        """Run its next case, and wait until it is ready again; after the last case, wait for its end."""
        os.write(self._go_fd, b"\n")
        started = self._hear("started")
        self._waited_s += started["at_s"] - self._ready_s
        verdict: dict[str, Any] = {}
        while (message := self._hear("verdict", "ended"))["event"] == "verdict":
            verdict = message
        self._turns.append(Turn(started["case"], started["at_s"], message["at_s"], verdict))
        if self.has_cases:
            self._ready_s = self._hear("waiting")["at_s"]
            return
        try:
            self._process.wait(_EXIT_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise BenchError(self._complaint(f"did not end within {_EXIT_LIMIT_S:.0f} s of its last case")) from None
        self._ended_s = time.monotonic()

    def run(self) -> Run:
        """Return the results after the last case."""
        session_s = self._ended_s - self._started_s - self._waited_s
        return Run(tuple(self._turns), session_s, self._folder)

    def kill(self) -> None:
        """Kill all its processes."""
        # The whole group, because some contestants leave processes behind when they are killed.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._go_fd)
        os.close(self._hear_fd)

    def _hear(self, *expected: str) -> dict[str, Any]:
        deadline_s = time.monotonic() + _ANSWER_LIMIT_S
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._hear_fd], [], [], max(0.0, deadline_s - time.monotonic()))
            if not ready:
                raise BenchError(self._complaint(f"sent nothing for {_ANSWER_LIMIT_S:.0f} s"))
            data = os.read(self._hear_fd, 1 << 16)
            if not data:
                raise BenchError(self._complaint("ended too early"))
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        if message["event"] not in expected:
            raise BenchError(self._complaint(f"sent {message}; expected {' or '.join(expected)}"))
        return message

    def _complaint(self, what: str) -> str:
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()
        return "\n".join([f"{self._contestant.name} {what}. The end of its output:", *lines[-_QUOTED_LINES:]])


def contest(contestants: Mapping[Contestant, Sequence[str]], *, world_size: int, folder: Path) -> dict[str, Run]:
    """Run the cases of all contestants, one case of each at a time; one with fewer cases ends earlier.

    Every second round has the reverse order, so that no contestant always follows the same one. The ranks write their
    files below an empty folder.

    Raises:
        BenchError: If a contestant fails to start, to answer or to end.
    """
    with contextlib.ExitStack() as stack:
        processes: dict[str, _Process] = {}
        for index, (contestant, cases) in enumerate(contestants.items()):
            own = folder / str(index)
            own.joinpath("tmp").mkdir(parents=True)
            output = stack.enter_context(tempfile.TemporaryFile())
            process = _Process(contestant, Order(world_size, tuple(cases), own), output)
            stack.callback(process.kill)
            # One after the other, because a start loads the machine.
            process.wait_ready()
            processes[contestant.name] = process
        for rounds in _rounds(list(processes.values())):
            for process in rounds:
                process.take_turn()
        return {name: process.run() for name, process in processes.items()}


def _rounds(processes: list[_Process]) -> Iterator[list[_Process]]:
    while processes := [process for process in processes if process.has_cases]:
        yield processes
        processes.reverse()


def require_passes(runs: Mapping[str, Run]) -> None:
    """Check that each case has passed, or that its contestant has no verdicts."""
    for name, run in runs.items():
        for turn in run.turns:
            if not turn.verdict.get("passed", True):
                raise BenchError(f"{name}: case {turn.case} did not pass:\n{turn.verdict['text']}")
