"""The programs that a cluster is made of."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from local_cluster.errors import ClusterError
from local_cluster.places import ClusterFiles, Scratch
from local_cluster.pools import Worker
from local_cluster.server_config import POLL_S

# In the environment of every part, and so of every action: what belongs to which cluster is seen by it even when the
# supervisor is no more. Its value is the scratch directory.
MARK = "DIST_TESTING_RBE"
# In the environment of a worker, and so of its actions.
WORKER_MARK = "DIST_TESTING_RBE_WORKER"
# Simulated GPUs of a worker (dist_testing/gpus/devices.py).
GPU_NODES = "DIST_TESTING_GPU_NODES"
# Where tests unpack their Python packages (tools/python/archive_loader.py). The user's own cache would keep them after
# the cluster.
WHEELS_CACHE = "DIST_TESTING_WHEELS_CACHE"

# Actions see this and nothing of the environment of whoever has started the cluster.
_CLEAN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Time between SIGTERM and SIGKILL for an action that has used up its time, as Bazel gives locally. Seconds.
ACTION_GRACE_S = 15

# The number of "nobody", which no system gives to anybody else.
NOBODY = 65534

DATABASE = "database"
SERVER = "server"


@dataclass(frozen=True, slots=True)
class Part:
    """One program.

    Attributes:
        name: What the user calls it; also the name of its log.
        command: Program and arguments.
        environment: Its whole environment.
        stop_signal: What asks it to end.
        worker: The worker that it is, or is a piece of; "" for the rest.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    stop_signal: signal.Signals = signal.SIGTERM
    worker: str = ""


@dataclass(slots=True)
class Running:
    """A part that was started.

    Attributes:
        part: What was started.
        process: Its process.
        pidfd: Readable when the process has ended.
        since: Wall-clock time of its start.
    """

    part: Part
    process: subprocess.Popen[bytes]
    pidfd: int
    since: float


def start_part(part: Part, log: Path) -> Running:
    """Start a part in a session of its own; it is killed when this process ends, however that happens.

    Raises:
        ClusterError: If the program cannot be started.
    """
    with log.open("ab") as output:
        try:
            process = subprocess.Popen(
                part.command,
                cwd="/",
                env=dict(part.environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        except OSError as error:
            raise ClusterError(
                f"{part.name} cannot be started: {part.command[0]}: {error.strerror}.",
                "The program is missing, or not made for this machine.",
                "Remove the private copies in the user cache (dist_testing/rbe), or install the program.",
            ) from error
    return Running(part, process, os.pidfd_open(process.pid), time.time())


def database_part(programs: Path, scratch: Scratch) -> Part:
    """Return PostgreSQL, which listens on a socket in its directory and on no address."""
    data = scratch.database
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": str(data),
        # The database does not outlive the cluster, so nothing has to survive a power cut.
        "fsync": "off",
        "full_page_writes": "off",
        "synchronous_commit": "off",
        # Files in its own directory, which go with it; segments in /dev/shm would stay after a SIGKILL.
        "dynamic_shared_memory_type": "mmap",
        "max_connections": "100",
        "log_timezone": "GMT",
        "timezone": "GMT",
    }
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    command = [*as_database_user(), str(programs / "postgres"), "-D", str(data), *options]
    # SIGINT: do not wait for clients.
    return Part(DATABASE, tuple(command), _environment(scratch), stop_signal=signal.SIGINT)


def as_database_user() -> list[str]:
    """Return what goes in front of a command of PostgreSQL's, which refuses to run as root."""
    if os.geteuid() != 0:
        return _with_parent()
    if has_user_namespaces():
        # Another name for root, which can still enter its home, where the user cache is.
        unshare = ["unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}", "--"]
        return [*unshare, *_with_parent()]
    user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    # To enter the scratch directory, which is root's.
    rights = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    return [*_with_parent(), *user, *rights]


@functools.cache
def has_user_namespaces() -> bool:
    """Say whether root may give itself another name; many containers do not allow it."""
    command = ["unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}", "--", "true"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def server_part(config: Path, database: str, scratch: Scratch) -> Part:
    """Return BuildGrid, with the tables of its database made first."""
    folders = [str(Path(entry).absolute()) for entry in sys.path if entry]
    environment = {**_environment(scratch), "PYTHONPATH": os.pathsep.join(folders), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [*_with_parent(), sys.executable, "-m", "local_cluster.server", database, str(config)]
    return Part(SERVER, tuple(command), environment)


def storage_part(worker: Worker, programs: Path, port: int, files: ClusterFiles, scratch: Scratch) -> Part:
    """Return the storage of a worker: what it has fetched once it does not fetch again."""
    command = [
        *_with_parent(),
        str(programs / "buildbox-casd"),
        f"--cas-remote=http://127.0.0.1:{port}",
        f"--bind=unix:{scratch.storage_socket(worker.name)}",
        str(files.worker(worker.name) / "storage"),
    ]
    return Part(f"{worker.name}.storage", tuple(command), _environment(scratch, worker.name), worker=worker.name)


def worker_part(worker: Worker, programs: Path, port: int, files: ClusterFiles, scratch: Scratch) -> Part:
    """Return the program that asks the server for actions and runs them."""
    properties = [word for name, value in worker.properties.items() for word in ("--platform", f"{name}={value}")]
    command = [
        *_with_parent(),
        str(programs / "buildbox-worker"),
        f"--bots-remote=http://127.0.0.1:{port}",
        f"--cas-remote=unix:{scratch.storage_socket(worker.name)}",
        f"--buildbox-run={programs / 'buildbox-run-hosttools'}",
        f"--runner-arg=--graceful-shutdown-seconds={ACTION_GRACE_S}",
        f"--concurrent-jobs={worker.jobs}",
        f"--max-wait-time={POLL_S}",
        *_staging_arguments(programs / "buildbox-run-hosttools"),
        *properties,
        worker.name,
    ]
    environment = _environment(scratch, worker.name)
    environment[WHEELS_CACHE] = str(files.wheels)
    if worker.present is not None:
        environment[GPU_NODES] = str(gpu_nodes(worker.name, files))
    return Part(worker.name, tuple(command), environment, worker=worker.name)


@functools.cache
def _staging_arguments(runner: Path) -> tuple[str, ...]:
    """Return what keeps a runner from mounting its inputs: a mount outlives a worker that is killed.

    Older runners do not know the option.
    """
    try:
        done = subprocess.run([runner, "--help"], capture_output=True, text=True, check=False)
    except OSError:
        # The worker will say so.
        return ()
    is_known = "--staging-mode" in done.stdout + done.stderr
    return ("--runner-arg=--staging-mode=copy-or-link",) if is_known else ()


def gpu_nodes(worker: str, files: ClusterFiles) -> Path:
    """Return the directory of a worker's simulated device nodes."""
    return files.worker(worker) / "simulated-gpus"


def _environment(scratch: Scratch, worker: str = "") -> dict[str, str]:
    environment = {"PATH": _CLEAN_PATH, "LC_ALL": "C.UTF-8", MARK: str(scratch.root)}
    if worker:
        environment[WORKER_MARK] = worker
        environment["TMPDIR"] = str(scratch.temporary)
    return environment


def _with_parent() -> list[str]:
    """Return what makes a program end with the process that has started it."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise ClusterError(
            "setpriv was not found on PATH.",
            "It starts programs that end with the supervisor; util-linux has it.",
            "Install util-linux.",
        )
    return [setpriv, "--pdeathsig=KILL"]
