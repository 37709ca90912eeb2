"""Clusters as commands see them: start one, find one, end one, clean up after one that was killed."""

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
from local_cluster.places import (
    SCRATCH_PARENT,
    SCRATCH_PREFIX,
    ClusterFiles,
    Scratch,
    remove_files,
    remove_removed,
)
from local_cluster.plan import Plan, reserve_port
from local_cluster.pools import Worker
from local_cluster.supervisor import DownError, Supervisor

# `down` waits as long for the supervisor to end all parts before it does the work itself. Seconds.
_DOWN_LIMIT_S = 30.0
# What is the matter with a disk, and not with this program.
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
    """Start a cluster, which goes on after this process has ended.

    Args:
        files: Where it keeps its files.
        name: Its name.
        port: Where its server listens; 0 for any free port.
        workers: All of them.
        find_programs: Returns the directories of BuildBox and PostgreSQL; called once nothing else is in the way.
        tell: Called with what happens.

    Returns:
        Its endpoint.

    Raises:
        ClusterError: If there is one already, or this one does not come up. Nothing is left then.
    """
    lock = _lock_new(files, name)
    scratch: Scratch | None = None
    try:
        clean_up(files, tell)
        if not _is_of(lock, files):
            # Removed with the rest.
            removed, lock = lock, _lock_new(files, name)
            os.close(removed)
        with reserve_port(port) as reservation:
            buildbox, postgres = find_programs()
            chosen = reservation.getsockname()[1]
            try:
                scratch = Scratch(Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=SCRATCH_PARENT)))
                scratch.temporary.mkdir()
            except OSError as error:
                raise _cannot_write(error) from error
            plan = Plan(name, chosen, workers, buildbox, postgres)
            _fork_supervisor(plan, files, scratch, keep=(lock, reservation.fileno()), tell=tell)
        return plan.endpoint
    except BaseException:
        # Nothing of it was started; else the supervisor has tidied up, and the name may be another cluster's already.
        if _is_of(lock, files) and not files.state.exists():
            remove_files(files, scratch)
        raise
    finally:
        os.close(lock)


def find_cluster(files: ClusterFiles, name: str) -> Scratch:
    """Return where a running cluster takes requests.

    Raises:
        ClusterError: If it does not run.
    """
    state = _read_state(files)
    pidfd = _supervisor_pidfd(files, state)
    if pidfd is None:
        left = " Something is left of one that was killed; `down` removes it." if state else ""
        raise ClusterError(
            f"there is no cluster '{name}'.{left}",
            "It was not started, or not under this name or by this user, or it has ended.",
            "Start it: ./bazelw run //tools/rbe -- up",
        )
    os.close(pidfd)
    return _scratch(files, state)


def end_cluster(files: ClusterFiles, name: str, tell: Callable[[str], None]) -> None:
    """End a cluster, or what is left of a killed one.

    Raises:
        ClusterError: If there is none, or something cannot be ended.
    """
    state = _read_state(files)
    if not state and not files.removed:
        # Says that there is none.
        find_cluster(files, name)
    pidfd = _supervisor_pidfd(files, state)
    if pidfd is not None:
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            if not select.select([pidfd], [], [], _DOWN_LIMIT_S)[0]:
                if _read_state(files) == state:
                    tell(f"the supervisor has not ended within {_DOWN_LIMIT_S:.0f} s; it is being killed")
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    select.select([pidfd], [], [], _DOWN_LIMIT_S)
                else:
                    # There may be gigabytes of them.
                    tell("nothing of it runs any more; its files are still being removed")
                    select.select([pidfd], [], [])
        finally:
            os.close(pidfd)
    if _read_state(files) != state or not state:
        # It has tidied up, and somebody may have started another one already.
        remove_removed(files)
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
        remove_files(files, None)
    finally:
        os.close(lock)


def clean_up(files: ClusterFiles, tell: Callable[[str], None]) -> None:
    """Remove what a killed cluster has left: processes, shared memory, files. The caller holds the lock.

    Raises:
        ClusterError: If something cannot be ended.
    """
    remove_removed(files)
    state = _read_state(files)
    if state:
        scratch = _scratch(files, state)
        tell("removing what a killed cluster has left")
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
        f"the supervisor ended with status {os.waitstatus_to_exitcode(status)} and said nothing.",
        "It was killed: perhaps the machine has no memory left.",
        "`down` removes what is left of it.",
    )


def _supervise(plan: Plan, files: ClusterFiles, scratch: Scratch, *, keep: tuple[int, ...], pipe: int) -> int:
    """Be the supervisor, until the cluster has ended."""

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
            f"the cluster '{plan.name}' was told to end before it was there.",
            "Somebody used `down`, or ended the process.",
            "`up` starts it again.",
        )
    except BrokenPipeError:
        # Whoever wanted the cluster is gone.
        failure = None
    except BaseException as error:
        if isinstance(error, OSError) and error.errno in _NOT_WRITABLE:
            failure = _cannot_write(error)
        else:
            # The log goes with the rest.
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
        # What has failed first is the reason; what is left is found by `down`.
        failure = failure or error
    if failure is not None and pipe >= 0:
        with suppress(BrokenPipeError):
            send(failed=[failure.what, failure.cause, failure.way_out])
    return 0 if failure is None else 1


def _cannot_write(error: OSError) -> ClusterError:
    subject = f"'{error.filename}'" if error.filename else "a file of the cluster"
    return ClusterError(
        f"{subject} cannot be made or written: {error.strerror}.",
        "The disk is full, or is not this user's to write.",
        f"Make room in the user cache (XDG_CACHE_HOME sets another one) and in {SCRATCH_PARENT}, or make it writable.",
    )


def _let_go_of_descriptors(log: Path, keep: tuple[int, ...]) -> None:
    """Keep nothing open that belongs to the caller: a pipe held open would make its reader wait for ever."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor > 2 and descriptor not in keep:
            # The listing's own is closed already.
            with suppress(OSError):
                os.close(descriptor)


def _lock_new(files: ClusterFiles, name: str) -> int:
    """Return a descriptor that holds the lock of a cluster that does not run.

    Raises:
        ClusterError: If it does, or the user cache cannot be written.
    """
    lock = _lock(files)
    if lock is None:
        where = _read_state(files).get("endpoint", "an endpoint that it has not told yet")
        raise ClusterError(
            f"the cluster '{name}' is there already, at {where}.",
            "One runs under each name.",
            "End it with `down`, or give this one another: --name.",
        )
    return lock


def _lock(files: ClusterFiles) -> int | None:
    """Return a descriptor that holds the cluster's lock; None if somebody else holds it.

    Raises:
        ClusterError: If the user cache cannot be written.
    """
    while True:
        try:
            files.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(files.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            # Somebody's `down` has removed the directory meanwhile.
            continue
        except OSError as error:
            raise ClusterError(
                f"'{error.filename}' cannot be written: {error.strerror}.",
                "The cluster keeps its files in the user cache.",
                "Make it writable, or set XDG_CACHE_HOME to another directory.",
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return None
            raise
        # `down` removes the file with the rest: a lock on a removed file is none.
        if _is_of(descriptor, files):
            return descriptor
        os.close(descriptor)


def _is_of(lock: int, files: ClusterFiles) -> bool:
    """Say whether a lock is the present one, and not one of a directory that was removed."""
    with suppress(FileNotFoundError):
        return os.stat(files.lock).st_ino == os.fstat(lock).st_ino
    return False


def _write_state(files: ClusterFiles, scratch: Scratch, plan: Plan) -> None:
    state = {"supervisor": os.getpid(), "scratch": str(scratch.root), "endpoint": plan.endpoint}
    draft = files.state.with_suffix(".draft")
    draft.write_text(json.dumps(state), encoding="utf-8")
    draft.replace(files.state)


def _read_state(files: ClusterFiles) -> dict[str, Any]:
    """Return what the supervisor wrote; empty if there is none.

    Raises:
        ClusterError: If it cannot be understood.
    """
    try:
        state = json.loads(files.state.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _bad_state(files, str(error)) from error
    # Nothing but these, which every version writes: `down` ends also what another one has started.
    if not isinstance(state, dict) or not all(
        isinstance(state.get(key), kind) for key, kind in (("supervisor", int), ("scratch", str), ("endpoint", str))
    ):
        raise _bad_state(files, "a part of it is missing")
    return state


def _scratch(files: ClusterFiles, state: dict[str, Any]) -> Scratch:
    """Return the scratch directory, which is going to be removed: nothing but one that `up` made may pass."""
    root = Path(state["scratch"])
    if root.parent != SCRATCH_PARENT or not root.name.startswith(SCRATCH_PREFIX):
        raise ClusterError(
            f"'{files.state}' names '{root}', which is no directory of a cluster's.",
            "The file was changed by hand.",
            f"Remove '{root}' by hand if it is a cluster's, and '{files.root}'.",
        )
    with suppress(FileNotFoundError):
        found = root.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise ClusterError(
                f"'{root}' is no directory of this user's.",
                "Somebody else has made it after a restart of the machine.",
                f"Remove '{files.root}', which says that it is this cluster's.",
            )
    return Scratch(root)


def _bad_state(files: ClusterFiles, reason: str) -> ClusterError:
    return ClusterError(
        f"'{files.state}' cannot be read: {reason}.",
        "The file was changed by hand, or the disk was full.",
        f"End what is left of the cluster by hand, and remove '{files.root}'.",
    )


def _supervisor_pidfd(files: ClusterFiles, state: dict[str, Any]) -> int | None:
    """Return a descriptor of the supervisor; None if it has ended, also if another process has its number now."""
    return processes.open_process(state["supervisor"], files.lock) if state else None
