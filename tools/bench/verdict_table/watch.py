"""Runs one suite in a child process, records what is visible from outside, and removes everything it leaves."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from dist_testing.core.process.orphans import Orphans, is_dead

# Limit from the verdict, or the signal, to the end of the runner. A runner that ends needs much less. Seconds.
EXIT_LIMIT_S = 20.0
# Time for processes that are ending when the runner has ended. Seconds.
_LEAVING_S = 5.0
# Time between two looks; the page shows tenths of seconds. Seconds.
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True)
class Observed:
    """A suite as seen from outside. Times are on the monotonic clock, in seconds."""

    log: str  # all its output
    events: Sequence[Mapping[str, Any]]  # the messages of its ranks, in order; see `bodies`
    verdict_s: float | None  # time when its summary was printed; None if it was not
    signalled_s: float | None  # time when the runner got its signal; None if it gets none
    ended_s: float | None  # time when the runner had ended; None if it had to be killed
    left: Sequence[str]  # descriptions of the processes that were left, one per process
    files: Sequence[str]  # names of the files that were left in its temporary folder, except those that the log names

    def told(self, event: str) -> list[Mapping[str, Any]]:
        """Return the events of one name."""
        return [told for told in self.events if told["event"] == event]


def watch(
    command: Sequence[str],
    env: Mapping[str, str],
    folder: Path,
    *,
    summary: re.Pattern[bytes],
    limit_s: float,
    runner_signal: int = 0,
    signal_when: int = 0,
) -> Observed:
    """Run a suite to its end, or kill it. This process must be a child subreaper.

    Args:
        command: Its command line.
        env: Its whole environment, without the temporary folder. Its ranks append their messages to `folder/events`.
        folder: An empty folder.
        summary: The line that it prints when all verdicts are known.
        limit_s: Limit for this line; after it, or after the signal, `EXIT_LIMIT_S` begins.
        runner_signal: The signal for the runner; 0 for none.
        signal_when: The number of ranks that must have reported their fault before the signal.
    """
    tmp, log, events = folder / "tmp", folder / "log", folder / "events"
    tmp.mkdir()
    events.touch()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**env, "TMPDIR": str(tmp)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    verdict_s = signalled_s = ended_s = None
    end_s = time.monotonic() + limit_s
    try:
        while ended_s is None and (now_s := time.monotonic()) < end_s:
            if process.poll() is not None:
                ended_s = now_s
            if verdict_s is None and summary.search(log.read_bytes()):
                verdict_s = now_s
            faults = sum(told["event"] == "fault" for told in _events(events))
            if runner_signal and signalled_s is None and faults >= signal_when:
                signalled_s = now_s
                process.send_signal(runner_signal)
            since_s = verdict_s if signalled_s is None else signalled_s
            if since_s is not None:
                end_s = min(end_s, since_s + EXIT_LIMIT_S)
            time.sleep(_LOOK_S)
        told = _events(events)
        left = _left(process.pid, told, has_ended=ended_s is not None)
        text = log.read_bytes().decode(errors="replace")
        # One that the report names is for its reader.
        files = sorted(path.name for path in tmp.iterdir() if str(path) not in text)
        return Observed(text, told, verdict_s, signalled_s, ended_s, left, files)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        Orphans().remove()


def _events(file: Path) -> list[dict[str, Any]]:
    # A rank writes a line at once.
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _left(runner: int, events: Sequence[Mapping[str, Any]], *, has_ended: bool) -> list[str]:
    if has_ended:
        psutil.wait_procs(_living(), timeout=_LEAVING_S)
    names = {told["pid"]: "rank" for told in events if told["event"] == "started"}
    names |= {told["pid"]: "grandchild" for told in events if told["event"] == "grandchild"}
    names[runner] = "runner"
    left = []
    for process in _living():
        with contextlib.suppress(psutil.NoSuchProcess):
            command = " ".join(process.cmdline())
            other = "resource tracker" if "resource_tracker" in command else command
            left.append(names.get(process.pid, other))
    return left


def _living() -> list[psutil.Process]:
    """Return all descendants. Orphan processes of the suites become children of this process, so it finds all."""
    return [process for process in psutil.Process().children(recursive=True) if not is_dead(process)]
