"""Runs one suite in a child process, records what is visible from outside, and removes everything it leaves."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

# Limit from the verdict, or the signal, to the end of the runner. A runner that ends needs much less. Seconds.
EXIT_LIMIT_S = 20.0
# Time for processes that are ending when the runner has ended. Seconds.
_LEAVING_S = 5.0
_KILL_LIMIT_S = 30.0
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Observed:
    """A suite as seen from outside. Times are on the monotonic clock, in seconds.

    Attributes:
        log: All its output.
        events: The messages of its ranks, in order; see `bodies`.
        verdict_s: Time when its summary was printed; None if it was not.
        signalled_s: Time when the runner got its signal; None if it gets none.
        ended_s: Time when the runner had ended; None if it had to be killed.
        left: Descriptions of the processes that were left, one per process.
        files: Names of the files that were left in its temporary folder, except those that the log names.
    """

    log: str
    events: tuple[Mapping[str, Any], ...]
    verdict_s: float | None
    signalled_s: float | None
    ended_s: float | None
    left: tuple[str, ...]
    files: tuple[str, ...]

    def told(self, event: str) -> list[Mapping[str, Any]]:
        """Return the events of one name."""
        return [told for told in self.events if told["event"] == event]


class _Suite:
    """A running suite: its process, its output, and the pipe for the messages of its ranks."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], bell: Path, summary: re.Pattern[bytes]) -> None:
        os.mkfifo(bell)
        # Both ends, so that the stream does not end when a rank closes its own end.
        self._bell_fd = os.open(bell, os.O_RDWR | os.O_NONBLOCK)
        self._summary = summary
        self._bell_rest = b""
        self.output = b""
        self.events: list[dict[str, Any]] = []
        self.verdict_s: float | None = None
        self.ended_s: float | None = None
        self._output_fd, theirs = os.pipe()
        os.set_blocking(self._output_fd, False)
        self.process = subprocess.Popen(
            command, env=dict(env), stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        self._pidfd = os.pidfd_open(self.process.pid)
        self._selector = selectors.DefaultSelector()
        for fd in (self._output_fd, self._bell_fd, self._pidfd):
            self._selector.register(fd, selectors.EVENT_READ)

    def close(self) -> None:
        """Stop watching."""
        self._selector.close()
        for fd in (self._output_fd, self._bell_fd, self._pidfd):
            os.close(fd)

    def look(self, until_s: float) -> None:
        """Read the next output and messages, until a time at the latest."""
        for key, _ in self._selector.select(max(0.0, until_s - time.monotonic())):
            if key.fd == self._pidfd:
                self.process.wait()
                self.ended_s = time.monotonic()
                self._selector.unregister(self._pidfd)
            elif key.fd == self._bell_fd:
                self._read_bell()
            else:
                self._read_output()

    def drain(self) -> None:
        """Read what is available. Leftover processes may keep the pipes open, so this does not wait for their end."""
        while self._read_output() or self._read_bell():
            pass

    def _read_bell(self) -> bool:
        try:
            data = os.read(self._bell_fd, _READ_BYTES)
        except BlockingIOError:
            return False
        *lines, self._bell_rest = (self._bell_rest + data).split(b"\n")
        self.events += [json.loads(line) for line in lines]
        return True

    def _read_output(self) -> bool:
        try:
            data = os.read(self._output_fd, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._output_fd)
            return False
        start = max(0, len(self.output) - _READ_BYTES)
        self.output += data
        if self.verdict_s is None and self._summary.search(self.output, start):
            self.verdict_s = time.monotonic()
        return True


def watch(
    command: Sequence[str],
    env: Mapping[str, str],
    bell: Path,
    *,
    summary: re.Pattern[bytes],
    limit_s: float,
    runner_signal: int = 0,
    signal_when: int = 0,
) -> Observed:
    """Run a suite to its end, or kill it. This process must be a child subreaper.

    Args:
        command: Its command line.
        env: Its whole environment, without the temporary folder.
        bell: Path of the named pipe to create.
        summary: The line that it prints when all verdicts are known.
        limit_s: Limit for this line; after it, or after the signal, `EXIT_LIMIT_S` begins.
        runner_signal: The signal for the runner; 0 for none.
        signal_when: The number of ranks that must have reported their fault before the signal.
    """
    with contextlib.ExitStack() as stack:
        tmp = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="verdict-", ignore_cleanup_errors=True)))
        stack.callback(_kill_everything)
        suite = _Suite(command, {**env, "TMPDIR": str(tmp)}, bell, summary)
        stack.callback(suite.close)
        end_s = time.monotonic() + limit_s
        signalled_s = None
        while suite.ended_s is None and time.monotonic() < end_s:
            suite.look(end_s)
            faults = [told for told in suite.events if told["event"] == "fault"]
            if runner_signal and signalled_s is None and len(faults) >= signal_when:
                signalled_s = time.monotonic()
                os.kill(suite.process.pid, runner_signal)
            since_s = suite.verdict_s if signalled_s is None else signalled_s
            if since_s is not None:
                end_s = min(end_s, since_s + EXIT_LIMIT_S)
        left = _left(suite)
        suite.drain()
        log = suite.output.decode(errors="replace")
        return Observed(
            log,
            tuple(suite.events),
            suite.verdict_s,
            signalled_s,
            suite.ended_s,
            tuple(left),
            # One that the report names is for its reader.
            tuple(sorted(path.name for path in tmp.iterdir() if str(path) not in log)),
        )


def _left(suite: _Suite) -> list[str]:
    if suite.ended_s is not None:
        psutil.wait_procs(_living(), timeout=_LEAVING_S)
    ranks = {told["pid"]: told["rank"] for told in suite.events if told["event"] == "started"}
    grandchildren = {told["pid"] for told in suite.events if told["event"] == "grandchild"}
    left = []
    for process in _living():
        with contextlib.suppress(psutil.NoSuchProcess):
            command = " ".join(process.cmdline())
            if process.pid == suite.process.pid:
                left.append("runner")
            elif process.pid in ranks:
                left.append("rank")
            elif process.pid in grandchildren:
                left.append("grandchild")
            else:
                left.append("resource tracker" if "resource_tracker" in command else command)
    return left


def _living() -> list[psutil.Process]:
    """Return all descendants. Orphan processes of the suites become children of this process, so it finds all."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _kill_everything() -> None:
    end_s = time.monotonic() + _KILL_LIMIT_S
    while living := _living():
        if time.monotonic() > end_s:
            raise RuntimeError(f"cannot be killed: {[process.pid for process in living]}")
        for process in living:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(living, timeout=1.0)
    # Orphan processes that have ended must be reaped here.
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
