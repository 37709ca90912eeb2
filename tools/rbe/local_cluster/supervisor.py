"""The process that starts the parts of a cluster, watches them, answers the other commands, and ends all parts."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from local_cluster import control, database, health, parts, processes
from local_cluster.errors import ClusterError
from local_cluster.parts import Part, Running
from local_cluster.places import ClusterFiles, Scratch, remove_files
from local_cluster.plan import Plan, Worker
from local_cluster.server_config import server_config

# <sys/prctl.h>: orphan processes become children of this process, so that it can find and end them.
_PR_SET_CHILD_SUBREAPER = 36

# Limit for a part to end after the request. The data is thrown away, so there is little to do. Seconds.
_STOP_LIMIT_S = 5.0
# A worker that has lost the server ends and is started again. A worker that ends this often within the time has another
# problem, and stays down.
_RESTARTS = 5
_RESTART_WINDOW_S = 60.0
# Number of events that `status` can show.
_EVENTS = 50
# A silent client must not keep the supervisor from watching the parts. Seconds.
_REQUEST_LIMIT_S = 5.0


class DownError(Exception):
    """The cluster is asked to end."""


class Supervisor:
    """A cluster that starts, runs or ends; `tell` is called with messages while it starts."""

    def __init__(self, plan: Plan, files: ClusterFiles, scratch: Scratch, tell: Callable[[str], None]) -> None:
        self._plan = plan
        self._files = files
        self._scratch = scratch
        self._tell = tell
        self._workers = {worker.name: worker for worker in plan.workers}
        self._running: dict[str, Running] = {}
        # Part that does not run -> how it has ended.
        self._ended: dict[str, str] = {}
        self._events: deque[tuple[float, str]] = deque(maxlen=_EVENTS)
        self._restarts: dict[str, deque[float]] = {}
        self._control = control.listen(scratch)
        self._wakeup, wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _ignore)
        # A signal raises only where that ends the cluster in order, and only once; elsewhere it is recorded.
        self._is_told_to_end = False
        self._raises = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_end_signal)
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def come_up(self) -> None:
        """Start every part and wait until it is ready.

        Raises:
            ClusterError: If a part does not become ready.
            DownError: If the cluster is asked to end at the same time.
        """
        with self._ended_by_signals():
            self._come_up()

    def _come_up(self) -> None:
        files, scratch, plan = self._files, self._scratch, self._plan
        files.storage.mkdir()
        self._tell("making a database")
        database.create_database(plan.postgres, scratch, self._log(parts.DATABASE))
        self._start(parts.database_part(plan.postgres, scratch), lambda: database.is_database_ready(scratch))
        self._tell("starting the server")
        address = database.database_address(scratch)
        config = server_config(port=plan.port, database=address, storage=files.storage, workers=plan.workers)
        files.server_config.write_text(config, encoding="utf-8")
        self._start_server()
        self._tell(f"starting {len(plan.workers)} worker(s)")
        for worker in plan.workers:
            folder = files.worker(worker.name)
            folder.mkdir(parents=True)
            if worker.present is not None:
                parts.make_gpu_nodes(parts.gpu_nodes(worker.name, files), worker.present)
        for worker in plan.workers:
            self._launch(parts.storage_part(worker, plan, files, scratch))
        for worker in plan.workers:
            self._start_worker_program(worker)
        for worker in plan.workers:
            self._wait_registered(worker, known={})

    def serve(self) -> None:
        """Watch the parts and answer requests until the cluster must end."""
        with suppress(DownError), self._ended_by_signals():
            while True:
                pidfds = {running.pidfd: name for name, running in self._running.items()}
                listening = self._control.fileno()
                ready, _, _ = select.select([listening, self._wakeup, *pidfds], [], [])
                # One at a time: handling it may end and start other parts, whose descriptors change.
                descriptor = ready[0]
                if descriptor == listening:
                    self._answer_one()
                elif descriptor == self._wakeup:
                    os.read(self._wakeup, 4096)
                    self._reap_strays()
                else:
                    self._note_end(pidfds[descriptor])

    def go_down(self) -> None:
        """End every part and every process that a part or an action has started; remove all files.

        Raises:
            ClusterError: If a process cannot be ended, or a file cannot be removed.
        """
        # The database ends last and gently: only then does it free its shared memory.
        kept = self._running.get(parts.DATABASE)
        spared = {kept.process.pid} if kept is not None else set()
        if kept is not None:
            spared.update(process.pid for process in processes.descendants_of(kept.process.pid))
        processes.kill_all(lambda: [one for one in processes.descendants() if one.pid not in spared])
        if kept is not None:
            _stop(kept)
        processes.kill_all(processes.descendants)
        database.remove_shared_memory(self._scratch)
        self._control.close()
        remove_files(self._files, self._scratch)

    @contextmanager
    def _ended_by_signals(self) -> Iterator[None]:
        """Raise DownError if a signal has asked for the end, also an earlier one.

        Raises:
            DownError: If a signal has come.
        """
        try:
            self._raises = True
            if self._is_told_to_end:
                raise DownError
            yield
        finally:
            self._raises = False

    def _on_end_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._is_told_to_end = True
        if self._raises:
            self._raises = False
            raise DownError

    # --- starting ----------------------------------------------------------------------------------------------------

    def _log(self, name: str) -> Path:
        return self._files.logs / f"{name}.log"

    def _launch(self, part: Part) -> Running:
        running = parts.start_part(part, self._log(part.name))
        self._running[part.name] = running
        self._ended.pop(part.name, None)
        return running

    def _start(self, part: Part, is_ready: Callable[[], bool]) -> None:
        health.wait_ready(self._launch(part), is_ready, self._log(part.name))

    def _start_server(self) -> None:
        address = database.database_address(self._scratch)
        part = parts.server_part(self._files.server_config, address, self._scratch)
        self._start(part, lambda: health.is_server_ready(self._plan.port))

    def _start_worker_program(self, worker: Worker) -> None:
        storage = self._running[f"{worker.name}.storage"]
        listening = self._scratch.storage_socket(worker.name)
        health.wait_ready(storage, lambda: health.is_listening(listening), self._log(storage.part.name))
        self._launch(parts.worker_part(worker, self._plan, self._files, self._scratch))

    def _start_worker(self, worker: Worker) -> None:
        self._scratch.storage_socket(worker.name).unlink(missing_ok=True)
        self._launch(parts.storage_part(worker, self._plan, self._files, self._scratch))
        self._start_worker_program(worker)

    def _wait_registered(self, worker: Worker, known: Mapping[str, str]) -> None:
        """Wait for a new session of a worker, which was not known before the worker was started."""

        def is_registered() -> bool:
            sessions = database.worker_sessions(self._scratch)
            return any(name == worker.name for session, name in sessions.items() if session not in known)

        health.wait_ready(self._running[worker.name], is_registered, self._log(worker.name))

    # --- ends --------------------------------------------------------------------------------------------------------

    def _note_end(self, name: str) -> None:
        running = self._running.pop(name)
        os.close(running.pidfd)
        status = running.process.wait()
        how = health.describe_end(status)
        self._ended[name] = how
        self._happened(f"{name} {how}")
        worker = self._workers.get(running.part.worker)
        if worker is None:
            return
        # A worker and its storage need each other.
        self._kill_worker(worker, f"{how}" if name == worker.name else f"its storage {how}")
        if status >= 0 and parts.SERVER in self._running and self._may_restart(worker):
            self._happened(f"{worker.name} is being started again")
            try:
                self._start_worker(worker)
            except ClusterError as error:
                self._kill_worker(worker, error.what)
                self._happened(error.what)

    def _may_restart(self, worker: Worker) -> bool:
        now = time.monotonic()
        recent = self._restarts.setdefault(worker.name, deque(maxlen=_RESTARTS))
        if len(recent) == _RESTARTS and now - recent[0] < _RESTART_WINDOW_S:
            self._happened(f"{worker.name} keeps ending, and stays down")
            return False
        recent.append(now)
        return True

    def _kill_worker(self, worker: Worker, why: str) -> None:
        """End a worker with its actions at once, as a power cut would."""
        pieces = (worker.name, f"{worker.name}.storage")
        pids = [self._running[name].process.pid for name in pieces if name in self._running]

        def find() -> list[psutil.Process]:
            below = [process for pid in pids for process in processes.descendants_of(pid)]
            # A process without its parents is found by its environment, one with another environment by its parents.
            return list({*processes.of_worker(worker.name, processes.descendants()), *below})

        processes.kill_all(find)
        for name in pieces:
            running = self._running.pop(name, None)
            if running is not None:
                running.process.kill()
                running.process.wait()
                os.close(running.pidfd)
            self._ended[name] = why

    def _reap_strays(self) -> None:
        """Reap orphan processes that became this process's children; leave the parts that were started here."""
        started = {running.process.pid for running in self._running.values()}
        for pid in processes.ended_children():
            if pid not in started:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def _happened(self, text: str) -> None:
        self._events.append((time.time(), text))

    # --- requests ----------------------------------------------------------------------------------------------------

    def _answer_one(self) -> None:
        try:
            connection, _ = self._control.accept()
        except BlockingIOError:
            # The client has ended the connection.
            return
        with connection:
            connection.settimeout(_REQUEST_LIMIT_S)
            try:
                request = control.read(connection)
            except (OSError, ValueError):
                # It is not one of our commands, or it was interrupted.
                return
            try:
                answer = self._answer(request)
            except ClusterError as error:
                answer = {"refused": [error.what, error.cause, error.way_out]}
            with suppress(OSError):
                control.write(connection, answer)

    def _answer(self, request: control.Message) -> control.Message:
        do, name = request.get("do"), str(request.get("name", ""))
        if do == "status":
            return self._status()
        if do == "kill":
            self._kill_worker(self._worker(name), "was killed on request")
            self._happened(f"{name} was killed on request")
            return {}
        if do == "restart":
            self._restart(name)
            return {}
        raise ClusterError(
            f"the supervisor does not know the request '{do}'.",
            "It was started by another version of this program.",
            "`down`, then `up`.",
        )

    def _restart(self, name: str) -> None:
        if name == parts.SERVER:
            running = self._running.pop(name, None)
            if running is not None:
                _stop(running)
                os.close(running.pidfd)
            self._start_server()
            self._happened("server was restarted on request")
            for worker in self._plan.workers:
                if worker.name not in self._running and self._ended.get(worker.name, "").startswith("ended"):
                    self._start_worker(worker)
            return
        worker = self._worker(name)
        known = database.worker_sessions(self._scratch)
        self._kill_worker(worker, "is being restarted")
        self._start_worker(worker)
        self._wait_registered(worker, known)
        self._happened(f"{name} was restarted on request")

    def _worker(self, name: str) -> Worker:
        if name not in self._workers:
            raise ClusterError(
                f"'{name}' is not a worker of the cluster '{self._plan.name}'.",
                f"Its workers: {', '.join(self._workers)}.",
                "Name one of those.",
            )
        return self._workers[name]

    def _status(self) -> control.Message:
        jobs: list[dict[str, Any]] = []
        registered: set[str] = set()
        problem = ""
        try:
            jobs = database.open_jobs(self._scratch)
            registered = set(database.worker_sessions(self._scratch).values())
        except ClusterError as error:
            problem = error.what
        return {
            "name": self._plan.name,
            "endpoint": self._plan.endpoint,
            "supervisor": os.getpid(),
            "scratch": str(self._scratch.root),
            "logs": str(self._files.logs),
            "problem": problem,
            "parts": [self._part_status(name) for name in (parts.DATABASE, parts.SERVER)],
            "workers": [
                {
                    **self._part_status(worker.name),
                    "pool": worker.pool,
                    "jobs": worker.jobs,
                    "present": worker.present,
                    "properties": dict(worker.properties),
                    "is_registered": worker.name in registered,
                }
                for worker in self._plan.workers
            ],
            "jobs": jobs,
            "events": list(self._events),
        }

    def _part_status(self, name: str) -> control.Message:
        running = self._running.get(name)
        return {
            "name": name,
            "pid": running.process.pid if running is not None else None,
            "since": running.since if running is not None else None,
            "ended": self._ended.get(name, "") if running is None else "",
        }


def _stop(running: Running) -> None:
    running.process.send_signal(running.part.stop_signal)
    try:
        running.process.wait(_STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        running.process.kill()
        running.process.wait()


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Wake the loop up, and do nothing else."""
