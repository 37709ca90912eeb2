"""The clusters of this machine: start one, find one, end one, and clean up after a killed one."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import select
import signal
import stat
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from local_cluster import database, processes
from local_cluster.errors import ClusterError
from local_cluster.places import SCRATCH_PARENT, SCRATCH_PREFIX, ClusterFiles, Scratch, remove_files
from local_cluster.plan import Plan, Worker, reserve_port
from local_cluster.supervisor import DownError, Supervisor

# `down` waits this long for the supervisor to end all parts. Then it ends them itself. Seconds.
_DOWN_LIMIT_S = 30.0
# Errors of a disk, not of this program.
_NOT_WRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


def start_cluster(
    files: ClusterFiles,
    *,
    name: str,
    port: int,
    workers: tuple[Worker, ...],
    find_programs: Callable[[], tuple[Path, Path]],
    tell: Callable[[str], None],
) -> str:
    """Start a cluster that outlives this process.

    Args:
        files: The places of its files.
        name: Its name.
        port: Port of its server; 0 for any free port.
        workers: All its workers.
        find_programs: Returns the directories of BuildBox and PostgreSQL; called after all other checks.
        tell: Called with messages about the progress.

    Returns:
        Its endpoint.

    Raises:
        ClusterError: If the name is in use, or the cluster cannot be started. Nothing is left then.
    """
    lock = _lock(files)
    if lock is None:
        where = _read_state(files).get("endpoint", "an endpoint that is not known yet")
        raise ClusterError(
            f"the cluster '{name}' exists already, at {where}.",
            "Each name can have one running cluster.",
            "End it with `down`, or choose another name: --name.",
        )
    scratch: Scratch | None = None
    try:
        clean_up(files, tell)
        with reserve_port(port) as reservation:
            buildbox, postgres = find_programs()
            chosen = reservation.getsockname()[1]
            try:
                files.root.mkdir(mode=0o700, exist_ok=True)
                scratch = Scratch(Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=SCRATCH_PARENT)))
                scratch.temporary.mkdir()
            except OSError as error:
                raise _cannot_write(error) from error
            plan = Plan(name, chosen, workers, buildbox, postgres)
            _fork_supervisor(plan, files, scratch, keep=(lock, reservation.fileno()), tell=tell)
        return plan.endpoint
    except BaseException:
        # With a state, it is the supervisor's to remove, or `down`'s.
        if not files.state.exists():
            remove_files(files, scratch)
        raise
    finally:
        os.close(lock)


def find_cluster(files: ClusterFiles, name: str) -> Scratch:
    """Return the endpoint of a running cluster."""
    state = _read_state(files)
    pidfd = _supervisor_pidfd(files, state)
    if pidfd is None:
        left = " Files of a killed one are left; `down` removes it." if state else ""
        raise ClusterError(
            f"there is no cluster '{name}'.{left}",
            "It was not started, or not under this name or by this user, or it has ended.",
            "Start it: bazel run @dist_testing//tools/rbe -- up",
        )
    os.close(pidfd)
    return _scratch(files, state)


def end_cluster(files: ClusterFiles, name: str, tell: Callable[[str], None]) -> None:
    """End a cluster, or remove the leftovers of a killed one."""
    state = _read_state(files)
    if not state:
        # Raises the error that there is no such cluster.
        find_cluster(files, name)
    pidfd = _supervisor_pidfd(files, state)
    if pidfd is not None:
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            if not select.select([pidfd], [], [], _DOWN_LIMIT_S)[0]:
                tell(f"the supervisor has not ended within {_DOWN_LIMIT_S:.0f} s; killing it")
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                select.select([pidfd], [], [], _DOWN_LIMIT_S)
        finally:
            os.close(pidfd)
    if _read_state(files) != state:
        # It has removed its files, and another cluster may have started under the name.
        return
    lock = _lock(files)
    if lock is None:
        raise ClusterError(
            f"the cluster '{name}' does not end.",
            f"Its lock '{files.lock}' is still held, perhaps by another `up` or `down`.",
            f"`fuser {files.lock}` names the holder.",
        )
    try:
        clean_up(files, tell)
    finally:
        os.close(lock)


def clean_up(files: ClusterFiles, tell: Callable[[str], None]) -> None:
    """Remove the leftovers of a killed cluster: processes, shared memory, files. The caller holds the lock.

    Raises:
        ClusterError: If a process cannot be ended.
    """
    state = _read_state(files)
    if state:
        scratch = _scratch(files, state)
        tell("removing the leftovers of a killed cluster")
        processes.kill_all(lambda: processes.marked(scratch))
        database.remove_shared_memory(scratch)
        remove_files(files, scratch)


def _fork_supervisor(
    plan: Plan, files: ClusterFiles, scratch: Scratch, *, keep: tuple[int, ...], tell: Callable[[str], None]
) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            status = _supervise(plan, files, scratch, keep=(*keep, writer), pipe=writer)
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as messages:
        try:
            for line in messages:
                message = json.loads(line)
                if "failed" in message:
                    os.waitpid(child, 0)
                    raise ClusterError(*message["failed"])
                if "ready" in message:
                    return
                tell(message["note"])
        except KeyboardInterrupt:
            os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)
            raise
    _, status = os.waitpid(child, 0)
    raise ClusterError(
        f"the supervisor ended with status {os.waitstatus_to_exitcode(status)} without a message.",
        "It was killed: perhaps the machine had no memory left.",
        "`down` removes its leftovers.",
    )


def _supervise(plan: Plan, files: ClusterFiles, scratch: Scratch, *, keep: tuple[int, ...], pipe: int) -> int:
    """Run as the supervisor until the cluster has ended."""

    def send(**message: Any) -> None:
        os.write(pipe, json.dumps(message).encode() + b"\n")

    supervisor: Supervisor | None = None
    failure: ClusterError | None = None
    try:
        os.setsid()
        os.chdir("/")
        files.logs.mkdir(parents=True, exist_ok=True)
        _let_go_of_descriptors(files.logs / "supervisor.log", keep)
        supervisor = Supervisor(plan, files, scratch, lambda text: send(note=text))
        _write_state(files, scratch, plan)
        supervisor.come_up()
        send(ready=True)
        os.close(pipe)
        pipe = -1
        supervisor.serve()
    except ClusterError as error:
        failure = error
    except DownError:
        failure = ClusterError(
            f"the cluster '{plan.name}' was told to end before it was ready.",
            "Another command ran `down`, or the process was ended.",
            "`up` starts it again.",
        )
    except BrokenPipeError:
        # The command that wanted the cluster has ended.
        failure = None
    except BaseException as error:
        if isinstance(error, OSError) and error.errno in _NOT_WRITABLE:
            failure = _cannot_write(error)
        else:
            # The log is removed with the other files, so it goes into the error.
            failure = ClusterError(
                f"the supervisor failed: {type(error).__name__}: {error}.",
                "It was interrupted, or this is a fault in it.",
                f"Try again; if it repeats, report it with this:\n{traceback.format_exc()}",
            )
    try:
        if supervisor is not None:
            supervisor.go_down()
        else:
            remove_files(files, scratch)
    except ClusterError as error:
        # The first failure is the reason; `down` finds the leftovers.
        failure = failure or error
    if failure is not None and pipe >= 0:
        with suppress(BrokenPipeError):
            send(failed=[failure.what, failure.cause, failure.way_out])
    return 0 if failure is None else 1


def _cannot_write(error: OSError) -> ClusterError:
    subject = f"'{error.filename}'" if error.filename else "a file of the cluster"
    return ClusterError(
        f"{subject} cannot be created or written: {error.strerror}.",
        "The disk is full, or this user may not write there.",
        "Free some space, or make it writable: in the user cache (XDG_CACHE_HOME sets another one) "
        f"and in {SCRATCH_PARENT}.",
    )


def _let_go_of_descriptors(log: Path, keep: tuple[int, ...]) -> None:
    """Close all descriptors of the caller: an open pipe would make its reader wait for ever."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor > 2 and descriptor not in keep:
            # The descriptor of the listing itself is closed already.
            with suppress(OSError):
                os.close(descriptor)


def _lock(files: ClusterFiles) -> int | None:
    """Return a descriptor that holds the cluster's lock; None if another process holds it."""
    try:
        files.lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(files.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ClusterError(
            f"'{error.filename}' cannot be written: {error.strerror}.",
            "The cluster keeps its files in the user cache.",
            "Make it writable, or set XDG_CACHE_HOME to another directory.",
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _write_state(files: ClusterFiles, scratch: Scratch, plan: Plan) -> None:
    state = {"supervisor": os.getpid(), "scratch": str(scratch.root), "endpoint": plan.endpoint}
    draft = files.state.with_suffix(".draft")
    draft.write_text(json.dumps(state), encoding="utf-8")
    draft.replace(files.state)


def _read_state(files: ClusterFiles) -> dict[str, Any]:
    """Return the supervisor's state file; empty if there is none.

    Raises:
        ClusterError: If it cannot be understood.
    """
    try:
        state: Any = json.loads(files.state.read_text(encoding="utf-8"))
        # Only the parts that every version writes: `down` also ends a cluster that another version has started.
        needed = {"supervisor": int, "scratch": str, "endpoint": str}
        if not isinstance(state, dict) or not all(isinstance(state.get(key), kind) for key, kind in needed.items()):
            raise ValueError("an entry is missing")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"'{files.state}' cannot be read: {error}.",
            "The file was changed by hand, or the disk was full.",
            f"End the remaining processes of the cluster by hand, and remove '{files.root}'.",
        ) from error
    return state


def _scratch(files: ClusterFiles, state: dict[str, Any]) -> Scratch:
    """Return the scratch directory, to remove it. Any directory that `up` did not make is an error."""
    root = Path(state["scratch"])
    if root.parent != SCRATCH_PARENT or not root.name.startswith(SCRATCH_PREFIX):
        raise ClusterError(
            f"'{files.state}' names '{root}', which is not a directory of a cluster.",
            "The file was changed by hand.",
            f"If '{root}' belongs to a cluster, remove it by hand; remove '{files.root}', too.",
        )
    with suppress(FileNotFoundError):
        found = root.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise ClusterError(
                f"'{root}' does not belong to this user.",
                "Another user has created it after a restart of the machine.",
                f"Remove '{files.root}': its state file names that directory.",
            )
    return Scratch(root)


def _supervisor_pidfd(files: ClusterFiles, state: dict[str, Any]) -> int | None:
    """Return a descriptor of the supervisor; None if it has ended, even if another process has its number now."""
    return processes.open_process(state["supervisor"], files.lock) if state else None
