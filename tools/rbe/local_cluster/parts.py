"""The programs of a cluster."""

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
from local_cluster.plan import HOST, Plan, Worker
from local_cluster.server_config import POLL_S

# A variable of every part, and so of every action. It tells which processes belong to which cluster, also after the
# supervisor has ended. Its value is the scratch directory.
MARK = "DIST_TESTING_RBE"
# A variable of a worker, and so of its actions.
WORKER_MARK = "DIST_TESTING_RBE_WORKER"
# The simulated GPUs of a worker (dist_testing/gpus/devices.py).
GPU_NODES = "DIST_TESTING_GPU_NODES"
# The folder where tests unpack their Python packages (wheels/archive_loader.py). In the user's own cache they
# would outlive the cluster.
WHEELS_CACHE = "DIST_TESTING_WHEELS_CACHE"

# Actions see this environment, and no variable of the user who has started the cluster.
_CLEAN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Time between SIGTERM and SIGKILL for an action that has reached its timeout; Bazel's local strategy waits as long.
# Seconds.
ACTION_GRACE_S = 15

# The number of the user "nobody", which no system gives to another user.
NOBODY = 65534

DATABASE = "database"
SERVER = "server"


@dataclass(frozen=True, slots=True)
class Part:
    """One program of the cluster."""

    name: str  # its name for the user and for its log
    command: tuple[str, ...]  # program and arguments
    environment: Mapping[str, str]  # its whole environment
    stop_signal: signal.Signals = signal.SIGTERM  # the signal that asks it to end
    worker: str = ""  # the worker that it belongs to; "" for other programs


@dataclass(slots=True)
class Running:
    """A part that was started."""

    part: Part  # the part
    process: subprocess.Popen[bytes]  # its process
    pidfd: int  # readable when the process has ended
    since: float  # Wall-clock time of its start


def start_part(part: Part, log: Path) -> Running:
    """Start a part in a session of its own. The kernel kills it when this process ends in any way."""
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
                "The program is missing, or made for another machine.",
                "Remove the private copies in the user cache (dist_testing/rbe), or install the program.",
            ) from error
    return Running(part, process, os.pidfd_open(process.pid), time.time())


def database_part(programs: Path, scratch: Scratch) -> Part:
    """Return PostgreSQL. It listens on a socket in its directory and on no address."""
    data = scratch.database
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": str(data),
        # The database does not outlive the cluster, so nothing must survive a power cut.
        "fsync": "off",
        "full_page_writes": "off",
        "synchronous_commit": "off",
        # Shared memory as files in its own directory, which are removed with it. Segments in /dev/shm would stay after
        # SIGKILL.
        "dynamic_shared_memory_type": "mmap",
        "max_connections": "100",
        "log_timezone": "GMT",
        "timezone": "GMT",
    }
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    command = [*as_database_user(), str(programs / "postgres"), "-D", str(data), *options]
    # SIGINT: end without waiting for clients.
    return Part(DATABASE, tuple(command), _environment(scratch), stop_signal=signal.SIGINT)


def as_database_user() -> list[str]:
    """Return the prefix for a command of PostgreSQL, which refuses to run as root."""
    if os.geteuid() != 0:
        return _with_parent()
    if has_user_namespaces():
        # Another name for root. It can still enter root's home, which has the user cache.
        unshare = ["unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}", "--"]
        return [*unshare, *_with_parent()]
    user = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    # The other user must enter the scratch directory, which belongs to root.
    rights = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    return [*_with_parent(), *user, *rights]


@functools.cache
def has_user_namespaces() -> bool:
    """Return whether root may take another name; many containers forbid it."""
    command = ["unshare", "--user", f"--map-user={NOBODY}", f"--map-group={NOBODY}", "--", "true"]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def server_part(config: Path, database: str, scratch: Scratch) -> Part:
    """Return BuildGrid. It creates the tables of its database first."""
    command = [*_with_parent(), sys.executable, "-m", "local_cluster.server", database, str(config)]
    return Part(SERVER, tuple(command), _python_environment(scratch))


def storage_part(worker: Worker, plan: Plan, files: ClusterFiles, scratch: Scratch) -> Part:
    """Return the storage of a worker. It keeps what it has fetched."""
    command = [
        *_with_parent(),
        str(plan.buildbox / "buildbox-casd"),
        f"--cas-remote=http://{HOST}:{plan.port}",
        f"--bind=unix:{scratch.storage_socket(worker.name)}",
        str(files.worker(worker.name) / "storage"),
    ]
    return Part(f"{worker.name}.storage", tuple(command), _environment(scratch, worker.name), worker=worker.name)


def worker_part(worker: Worker, plan: Plan, files: ClusterFiles, scratch: Scratch) -> Part:
    """Return the program that takes actions from the server and runs them."""
    programs = plan.buildbox
    properties = [word for name, value in worker.properties.items() for word in ("--platform", f"{name}={value}")]
    command = [
        *_with_parent(),
        str(programs / "buildbox-worker"),
        f"--bots-remote=http://{HOST}:{plan.port}",
        "--instance=",
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
    """Return the option that keeps a runner from mounting its inputs: a mount outlives a killed worker.

    Older runners do not know the option.
    """
    try:
        done = subprocess.run([runner, "--help"], capture_output=True, text=True, check=False)
    except OSError:
        # The worker reports the problem.
        return ()
    is_known = "--staging-mode" in done.stdout + done.stderr
    return ("--runner-arg=--staging-mode=copy-or-link",) if is_known else ()


def gpu_nodes(worker: str, files: ClusterFiles) -> Path:
    """Return the directory of a worker's simulated device nodes."""
    return files.worker(worker) / "simulated-gpus"


def make_gpu_nodes(folder: Path, count: int) -> None:
    """Make simulated device nodes as NVIDIA's driver names them, with the control node, on which leases queue.

    Without any GPU there is no control node either.
    """
    folder.mkdir()
    for name in ["nvidiactl", *(f"nvidia{number}" for number in range(count))] if count else []:
        (folder / name).touch()


def _environment(scratch: Scratch, worker: str = "") -> dict[str, str]:
    environment = {"PATH": _CLEAN_PATH, "LC_ALL": "C.UTF-8", MARK: str(scratch.root)}
    if worker:
        environment[WORKER_MARK] = worker
        environment["TMPDIR"] = str(scratch.temporary)
    return environment


def _python_environment(scratch: Scratch) -> dict[str, str]:
    folders = [str(Path(entry).absolute()) for entry in sys.path if entry]
    return {**_environment(scratch), "PYTHONPATH": os.pathsep.join(folders), "PYTHONDONTWRITEBYTECODE": "1"}


def _with_parent() -> list[str]:
    """Return the command prefix that ends a program together with the process that has started it."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise ClusterError(
            "setpriv was not found on PATH.",
            "setpriv starts programs that end with the supervisor; util-linux has it.",
            "Install util-linux.",
        )
    return [setpriv, "--pdeathsig=KILL"]
