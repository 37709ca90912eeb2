"""Runs the suite's command once, with the hook in its environment; finds what it has left behind, and removes it.

That is processes, listening ports, files of the temporary folder and of /dev/shm.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from dist_testing.audit.hook import with_hook
from dist_testing.audit.hook.record import Plan
from dist_testing.audit.seen import Seen, read_records
from dist_testing.core.ground.error_text import shorten
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.procfs import command_of, content_of, open_files
from dist_testing.core.process.lifetime import die_with_parent, is_helper
from dist_testing.core.process.orphans import Orphans, is_dead

_BOOTSTRAP = Path(__file__).parent / "bootstrap"
_LOOK_S = 0.05
# Seconds for the kernel to end killed processes.
_KILLED_S = 10.0
_OUTPUT_BYTES = 400_000
_OUTPUT_SHOWN = 15
_SHM = "/dev/shm"
# Seconds until a process counts as left behind: it may be about to end, and helpers wait for a moment of their own.
_LEAVING_S = 2.0
_COMMAND_CHARS = 160
# Not only digits: those are pids and numbers, of any length. A suffix may follow, such as ".json".
_TEMPORARY = re.compile(r"([^.]*|.*)(?=[0-9_]*[a-z])[a-z0-9_]{8}((?:\.[a-z]+)*)")
_UUID = re.compile(r"[0-9a-f]{8}(-?)[0-9a-f]{4}(\1[0-9a-f]{4}){2}\1[0-9a-f]{12}")
# pytest keeps the folders of its last sessions on purpose.
_KEPT_ON_PURPOSE = "pytest-of-"


@dataclass(frozen=True)
class Left:
    """What a run has left behind."""

    processes: tuple[str, ...] = ()  # command lines of processes that still ran
    ports: tuple[str, ...] = ()  # addresses on which these processes listened, such as "127.0.0.1:29500"
    files: tuple[str, ...] = ()  # names of files and folders, such as "/dev/shm/psm_1a2b"

    def beyond(self, usual: Left) -> Left:
        """Return the things of which `usual`, from a run without a fault, has none of the same shape."""
        known = {shape(name) for name in (*usual.processes, *usual.files)}
        processes = tuple(name for name in self.processes if shape(name) not in known)
        ports = self.ports if processes else ()
        return Left(processes, ports, tuple(name for name in self.files if shape(name) not in known))

    def __bool__(self) -> bool:
        return bool(self.processes or self.ports or self.files)


def shape(name: str) -> str:
    """Return a name without what differs between two runs: numbers, and the random part of temporary names."""
    if name.startswith("/"):
        name = _UUID.sub("0", name)
        # tempfile puts eight random letters, digits or underscores at the end.
        found = _TEMPORARY.fullmatch(name)
        return re.sub(r"\d+", "0", found[1] + found[2] if found else name)
    return re.sub(r"0x[0-9a-f]+|\d+", "0", name)


@dataclass(frozen=True)
class Ran:
    """One run of the command."""

    # Its exit status; minus the signal's number if a signal ended it; None if it had to be stopped.
    exit_status: int | None
    seconds: float  # how long it took
    ended_s: float  # its end, on the clock of `time.monotonic`
    output: str  # the end of what it wrote
    log: Path  # file with all that it wrote
    left: Left  # what it left behind; nothing if it had to be stopped
    seen: Seen  # what the hook saw

    @property
    def end_of_output(self) -> str:
        """Its last lines, as a paragraph for an error."""
        lines = self.output.strip().splitlines()[-_OUTPUT_SHOWN:]
        return "\n".join(["", "Its output ends with:", *(f"    {line}" for line in lines)]) if lines else ""


class Runner:
    """Runs a command again and again, each time in an empty folder for its temporary files."""

    def __init__(self, command: Sequence[str], folder: Path, logs: Path, after_fault_s: float) -> None:
        self._command = list(command)
        self._folder = folder
        self._logs = logs
        self._after_fault_s = after_fault_s  # limit from the moment when the fault came
        self._count = 0

    def run(self, plan: Plan, limit_s: float, words: Sequence[str] = ()) -> Ran:
        """Run the command with `words` at its end, and return what happened; no process of it is alive then."""
        self._count += 1
        folder = self._folder / str(self._count)
        temp = folder / "t"
        temp.mkdir(parents=True)
        (folder / "records.jsonl").touch()
        (folder / "plan.json").write_text(json.dumps(plan._asdict()), encoding="utf-8")
        own = {"TMPDIR": str(temp), "DIST_TESTING_AUDIT": str(folder), "DIST_TESTING_AUDIT_BOOTSTRAP": str(_BOOTSTRAP)}
        log = self._logs / f"{self._count}.log"
        shm = _SharedMemory()
        began_s = time.monotonic()
        with log.open("wb") as output:
            process = _start([*self._command, *words], {**os.environ, **own}, output.fileno())
        try:
            in_time = _wait(process, folder / "planted", began_s + limit_s, self._after_fault_s, shm)
            ended_s = time.monotonic()
            left = _find_left(temp, shm) if in_time else Left()
        finally:
            _end_all(process)
        ran = Ran(
            process.returncode if in_time else None,
            ended_s - began_s,
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


def _start(command: list[str], env: Mapping[str, str], output: int) -> subprocess.Popen[bytes]:
    parent = os.getpid()
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=with_hook(env),
            # No session of its own: there a test could not make its process the leader of a group, as vLLM's do.
            process_group=0,
            # Safe: this process has one thread.
            preexec_fn=lambda: die_with_parent(parent),
        )
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{' '.join(command)}: {error}.\n"
            "The command could not be started.\n"
            "Write the test command after `--` as in a shell without quotes: -- python -m pytest tests/."
        ) from error


def _wait(
    process: subprocess.Popen[bytes], planted: Path, until_s: float, after_fault_s: float, shm: _SharedMemory
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


class _SharedMemory:
    """Tells which files of /dev/shm the processes of a run have made. All programs of the machine share that folder."""

    def __init__(self) -> None:
        """Make the object before the run."""
        self._before = _shared_memory()
        self._own: set[str] = set()

    def look(self) -> None:
        """Look who uses the new files; call it often while the run goes on."""
        if new := _shared_memory() - self._before - self._own:
            for process in _living():
                self._own |= new & _files_used_by(process)

    def left(self) -> frozenset[str]:
        """Return the files of the run that still exist."""
        return _shared_memory() & self._own


def _shared_memory() -> frozenset[str]:
    with contextlib.suppress(OSError):
        return frozenset(entry.path for entry in os.scandir(_SHM))
    return frozenset()


def _files_used_by(process: psutil.Process) -> set[str]:
    """Return the files that a process has mapped or open."""
    # psutil's lists cost much more: it asks for the size of each map, and for the flags and place of each open file.
    maps = content_of(f"/proc/{process.pid}/maps").decode(errors="replace").split("\n")
    used = {"/" + line.partition("/")[2] for line in maps if "/" in line}
    with contextlib.suppress(OSError):
        used.update(open_files(process.pid).values())
    return used


def _living() -> list[psutil.Process]:
    """Return the descendants of this process that still run."""
    return [process for process in psutil.Process().children(recursive=True) if not is_dead(process)]


def _find_left(temp: Path, shm: _SharedMemory) -> Left:
    """Return what a command has left behind that has ended. Its processes must be descendants of this one."""
    shm.look()
    # It reaps those that end. The command's own exit status is known by now.
    psutil.wait_procs(_living(), timeout=_LEAVING_S)
    named, ports = [], set()
    for process in _living():
        with contextlib.suppress(psutil.Error):
            command = command_of(process.pid) or process.name()
            if is_helper(process.pid, command):
                continue
            named.append(shorten(command, _COMMAND_CHARS).replace("\n", " "))
            for connection in process.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    ports.add(f"{connection.laddr.ip}:{connection.laddr.port}")
    files = [str(path) for path in sorted(temp.iterdir()) if not path.name.startswith(_KEPT_ON_PURPOSE)]
    files += sorted(shm.left())
    # The folder of the run is the audit's own, and gone when a person reads this.
    return Left(tuple(named), tuple(sorted(ports)), tuple(file.replace(f"{temp}/", "/tmp/") for file in files))
