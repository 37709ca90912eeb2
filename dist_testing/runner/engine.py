"""The engine: one per run. Takes cases, makes worlds, gives results.

    case -> start() -> ranks running -> finish() -> outcomes -> verdict -> CaseResult

The two front doors drive it: pytest runs a case in one go, a unittest class starts it in `setUp` and finishes it in the
test method.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dist_testing.budget import Budget
from dist_testing.errors import LaunchError, UsageError
from dist_testing.launch.fork import ForkLauncher
from dist_testing.launch.wire import WorldRequest
from dist_testing.outcomes import RankOutcome, Status, Verdict, verdict
from dist_testing.rank.bootstrap import Resolver
from dist_testing.rank.environment import LOOPBACK
from dist_testing.runner.rank_env import rank_env, threads_per_rank
from dist_testing.runner.ranks import RankRecord
from dist_testing.runner.supervisor import Supervisor
from dist_testing.spec import MAX_WORLD_SIZE, Spec
from dist_testing.world import WorldSettings

__all__ = ["Case", "CaseResult", "Engine", "RunningCase"]

# Descriptors that the runner holds per rank: its channel and the rank's stacks, both ends while the world is started.
_FDS_PER_RANK = 4
# And beside the ranks: log files, pytest's, Python's own.
_FDS_SPARE = 64
# What is quoted of a rank's log. Bytes; the last ones.
_LOG_TAIL_BYTES = 64 * 1024
# Of the group's limit, so that torch gives up before the runner does and says what it waited for.
_GROUP_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Case:
    """One test, to be run on one world.

    Attributes:
        name: As the user names it: a pytest node id, or `module.Class.method`.
        world_size: Ranks.
        body: What the resolver given to the engine finds the test by.
        timeout_s: The case's own limit, in seconds.
        init: Whether the library makes the default group.
        with_store: Whether the world has a store of the library's, at MASTER_ADDR and MASTER_PORT.
    """

    name: str
    world_size: int
    body: dict[str, Any]
    timeout_s: float
    init: bool = True
    with_store: bool = True


@dataclass(frozen=True, slots=True)
class CaseResult:
    """How a case went.

    Attributes:
        case: The case.
        verdict: What it adds up to.
        outcomes: One per rank, by rank.
        started_s: When the ranks were asked for, on the runner's monotonic clock.
        duration_s: From then until nothing of them was left, in seconds.
        limit_s: How long the case was allowed to run, in seconds.
        logs: Rank to the end of its output, for ranks that a failure report quotes.
        log_files: Rank to the file with all of its output; there until the engine is closed.
        stacks: Rank to its stacks, if the deadline passed.
        leaked: Command lines of processes that were left behind.
    """

    case: Case
    verdict: Verdict
    outcomes: tuple[RankOutcome, ...]
    started_s: float
    duration_s: float
    limit_s: float
    logs: Mapping[int, str] = field(default_factory=dict)
    log_files: Mapping[int, Path] = field(default_factory=dict)
    stacks: Mapping[int, str] = field(default_factory=dict)
    leaked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunningCase:
    """A case whose ranks have been asked for."""

    case: Case
    supervisor: Supervisor
    directory: Path
    stacks_fds: Mapping[int, int]
    store: socket.socket | None
    started_s: float
    limit_s: float


class Engine:
    """Runs cases, one world at a time, each on fresh ranks.

    Attributes:
        spec: What the target asks for.
        cases_after: Cases that will come after the next one; they share the budget with it.
    """

    def __init__(self, spec: Spec, budget: Budget, resolve: Resolver) -> None:
        """Make an engine. No process is started yet.

        Args:
            spec: What the target asks for.
            budget: The time of the whole run.
            resolve: Finds, on a rank, the test that a case's body names.
        """
        self.spec = spec
        self.cases_after = 0
        self._budget = budget
        self._resolve = resolve
        self._launcher: ForkLauncher | None = None
        self._worlds = 0
        self._directory: Path | None = None

    def prepare(self) -> tuple[ForkLauncher, Path]:
        """Fork the template now, while this process is clean. Without this the first case does it.

        Returns:
            The launcher and the run's folder.

        Raises:
            LaunchError: If this process is not clean.
        """
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="dist-", dir=os.environ.get("TEST_TMPDIR")))
        if self._launcher is None:
            self._launcher = ForkLauncher(self._resolve, str(self._directory))
        return self._launcher, self._directory

    def start(self, case: Case) -> RunningCase:
        """Ask for the ranks of a case; returns as soon as they are asked for.

        Raises:
            LaunchError: If they cannot be had.
            UsageError: If the world is larger than can be.
        """
        _check_world_size(case)
        launcher, run_directory = self.prepare()
        self._worlds += 1
        directory = run_directory / str(self._worlds)
        directory.mkdir()
        limit_s = self._budget.limit_s(case.timeout_s, cases_after=self.cases_after)
        store = socket.create_server((LOOPBACK, 0), backlog=2 * case.world_size) if case.with_store else None
        settings = WorldSettings(
            backend=self.spec.backend.torch_backend,
            device=self.spec.backend.device,
            gpus_per_rank=self.spec.gpus_per_rank,
            timeout_s=max(1.0, _GROUP_SHARE * limit_s),
            init=case.init,
        )
        request = WorldRequest(
            world=self._worlds,
            size=case.world_size,
            body=case.body,
            directory=str(directory),
            env=rank_env(
                os.environ,
                world_size=case.world_size,
                backend_env=self.spec.backend.env,
                scratch=os.environ.get("TEST_TMPDIR"),
            ),
            cwd=os.getcwd(),
            umask=_umask(),
            threads=threads_per_rank(case.world_size),
            store_port=store.getsockname()[1] if store else 0,
            settings=settings.to_json(),
        )
        channels = [socket.socketpair() for _ in range(case.world_size)]
        stacks = [os.pipe() for _ in range(case.world_size)]
        started_s = time.monotonic()
        try:
            launcher.start(
                request,
                [theirs.fileno() for _, theirs in channels]
                + [write for _, write in stacks]
                + ([store.fileno()] if store else []),
            )
        except LaunchError:
            self._launcher = None
            raise
        finally:
            for _, theirs in channels:
                theirs.close()
            for _, write in stacks:
                os.close(write)
        records = [RankRecord(rank, ours) for rank, (ours, _) in enumerate(channels)]
        stacks_fds = {rank: read for rank, (read, _) in enumerate(stacks)}
        supervisor = Supervisor(launcher, self._worlds, records, stacks_fds, limit_s)
        return RunningCase(case, supervisor, directory, stacks_fds, store, started_s, limit_s)

    def finish(self, running: RunningCase) -> CaseResult:
        """Wait for the end of a case, at most until its deadline, and judge it.

        Raises:
            LaunchError: If the ranks could not be made, or could not be got rid of.
        """
        supervisor, case = running.supervisor, running.case
        with self._closing(running):
            supervisor.wait()
        outcomes = tuple(record.outcome() for record in supervisor.records)
        result = verdict(
            outcomes,
            world_size=case.world_size,
            promised=self.spec.promises(case.world_size),
            leaked=supervisor.leaked,
        )
        log_files: dict[int, Path] = {}
        quoted: Sequence[int] = ()
        if result.status is Status.FAILED:
            log_files = {rank: running.directory / f"rank-{rank}.log" for rank in range(case.world_size)}
            quoted = [result.culprit, *result.failing] if result.culprit is not None else list(log_files)
        else:
            shutil.rmtree(running.directory, ignore_errors=True)
        return CaseResult(
            case=case,
            verdict=result,
            outcomes=outcomes,
            started_s=running.started_s,
            duration_s=time.monotonic() - running.started_s,
            limit_s=running.limit_s,
            logs={rank: _tail(log_files[rank]) for rank in quoted},
            log_files=log_files,
            stacks=supervisor.stacks,
            leaked=tuple(supervisor.leaked),
        )

    def abandon(self, running: RunningCase) -> None:
        """Kill the ranks of a case that nobody will ask about any more."""
        with self._closing(running):
            running.supervisor.abort()

    @contextlib.contextmanager
    def _closing(self, running: RunningCase) -> Iterator[None]:
        """Whatever happens, no rank and no descriptor of the case outlives this."""
        supervisor = running.supervisor
        try:
            yield
        except LaunchError:
            self._drop_launcher()
            raise
        except BaseException:
            supervisor.abort()
            raise
        finally:
            for fd in running.stacks_fds.values():
                os.close(fd)
            for record in supervisor.records:
                record.channel.close()
            if running.store is not None:
                running.store.close()

    def run(self, case: Case) -> CaseResult:
        """`start` and `finish`."""
        return self.finish(self.start(case))

    def close(self) -> None:
        """Let the template go and remove the run's folder. Nothing of the run is left after this."""
        self._drop_launcher()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _drop_launcher(self) -> None:
        if self._launcher is not None:
            launcher, self._launcher = self._launcher, None
            launcher.close()


def _check_world_size(case: Case) -> None:
    if not 1 <= case.world_size <= MAX_WORLD_SIZE:
        raise UsageError(f"{case.name}: world_size = {case.world_size}; expected 1 to {MAX_WORLD_SIZE}.")
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FDS_PER_RANK * case.world_size + _FDS_SPARE
    if limit != resource.RLIM_INFINITY and needed > limit:
        raise UsageError(
            f"{case.name}: a world of {case.world_size} ranks needs about {needed} open files; the limit is {limit}.\n"
            "Each rank has a channel to the runner and one for its stacks.\n"
            "Raise the limit with `ulimit -n`, or ask for a smaller world."
        )


def _umask() -> int:
    # It can only be read by setting it.
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        # The rank never got as far as opening it.
        return ""
