"""Runs the suite's command once, with the hook in its environment, and ends every process of it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dist_testing.audit.hook.record import Plan
from dist_testing.audit.left import Left, LeftSharedMemory, find_left
from dist_testing.audit.seen import Seen, read_records
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.process.lifetime import die_with_parent
from dist_testing.core.process.orphans import Orphans

_BOOTSTRAP = Path(__file__).parent / "bootstrap"
_LOOK_S = 0.05
# Seconds for the kernel to end killed processes.
_KILLED_S = 10.0
_OUTPUT_BYTES = 400_000


@dataclass(frozen=True)
class Ran:
    """One run of the command."""

    # Its exit status; minus the signal's number if a signal ended it; None if it had to be stopped.
    exit_status: int | None
    began_s: float  # Start, on the clock of `time.monotonic`
    ended_s: float  # End on the same clock
    output: str  # the end of what it wrote
    log: Path  # file with all that it wrote
    left: Left  # what it left behind; nothing if it had to be stopped
    seen: Seen  # what the hook saw

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended_s - self.began_s


class Runner:
    """Runs a command again and again, each time in an empty folder for its temporary files."""

    def __init__(self, command: Sequence[str], folder: Path, logs: Path, after_fault_s: float) -> None:
        self._command = list(command)
        self._folder = folder
        self._logs = logs
        self._after_fault_s = after_fault_s  # limit from the moment when the fault came
        self._count = 0

    def run(self, plan: Plan, limit_s: float) -> Ran:
        """Run the command, and return what happened; no process of it is alive then."""
        self._count += 1
        folder = self._folder / str(self._count)
        temp = folder / "t"
        temp.mkdir(parents=True)
        (folder / "plan.json").write_text(json.dumps(plan._asdict()), encoding="utf-8")
        (folder / "records.jsonl").touch()
        log = self._logs / f"{self._count}.log"
        shm = LeftSharedMemory()
        began_s = time.monotonic()
        with log.open("wb") as output:
            process = self._start(folder, temp, output.fileno())
        try:
            in_time = _wait(process, folder / "planted", began_s + limit_s, self._after_fault_s, shm)
            ended_s = time.monotonic()
            left = find_left(temp, shm) if in_time else Left()
        finally:
            _end_all(process)
        ran = Ran(
            process.returncode if in_time else None,
            began_s,
            ended_s,
            _tail(log),
            log,
            left,
            read_records(folder / "records.jsonl"),
        )
        shutil.rmtree(folder, ignore_errors=True)
        for path in shm.left():
            with contextlib.suppress(OSError):
                os.unlink(path)
        return ran

    def _start(self, folder: Path, temp: Path, output: int) -> subprocess.Popen[bytes]:
        parent = os.getpid()
        try:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(os.environ, folder, temp),
                start_new_session=True,
                # Safe: this process has one thread.
                preexec_fn=lambda: die_with_parent(parent),
            )
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{' '.join(self._command)}: {error}.\n"
                "The command could not be started.\n"
                "Write the test command after `--` as in a shell without quotes: -- python -m pytest tests/."
            ) from error


def environment(given: Mapping[str, str], folder: Path, temp: Path) -> dict[str, str]:
    """Return the environment of a run: the given one, and the variables that the hook needs."""
    added = dict(given)
    added["DIST_TESTING_AUDIT"] = str(folder)
    added["DIST_TESTING_AUDIT_BOOTSTRAP"] = str(_BOOTSTRAP)
    added["TMPDIR"] = str(temp)
    added["PYTHONPATH"] = os.pathsep.join([str(_BOOTSTRAP), *filter(None, [given.get("PYTHONPATH")])])
    return added


def _wait(
    process: subprocess.Popen[bytes], planted: Path, until_s: float, after_fault_s: float, shm: LeftSharedMemory
) -> bool:
    """Wait for the end of the command; return False if it did not come in time."""
    is_planted = False
    while process.poll() is None:
        shm.look()
        if not is_planted and planted.exists():
            is_planted, until_s = True, min(until_s, time.monotonic() + after_fault_s)
        if time.monotonic() >= until_s:
            return False
        time.sleep(_LOOK_S)
    return True


def _end_all(process: subprocess.Popen[bytes]) -> None:
    """Kill the command and all its descendants, which this process adopts as their subreaper."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    # First the command by its own handle, because reaping all children would take its exit status.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILLED_S)
    Orphans().remove()


def _tail(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _OUTPUT_BYTES))
        return file.read().decode(errors="replace")
