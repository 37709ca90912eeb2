"""The engine: one per run. Takes cases, makes worlds, gives results.

    case -> start() -> ranks running -> finish() -> outcomes -> verdict -> CaseResult

The two front doors drive it: pytest runs a case in one go, a unittest class starts it in `setUp` and finishes it in the
test method.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dist_testing.budget import Budget
from dist_testing.errors import LaunchError, UsageError
from dist_testing.launch.fork import ForkLauncher
from dist_testing.launch.fresh import Loader
from dist_testing.outcomes import Cause, Kind, RankOutcome, Status, verdict
from dist_testing.rank.bootstrap import RankSide
from dist_testing.runner.case import Case, CaseResult
from dist_testing.runner.run_directory import RunDirectory
from dist_testing.runner.running_world import RunningWorld, check_world_size, start_world
from dist_testing.runner.stack_dumps import operation_in
from dist_testing.spec import Spec

__all__ = ["Engine", "RunningCase"]

# What is quoted of a rank's log. Bytes; the last ones.
_LOG_TAIL_BYTES = 64 * 1024
# For the ranks of a pool to destroy their groups and end. Seconds.
_POOL_END_LIMIT_S = 30.0


@dataclass(frozen=True, slots=True)
class RunningCase:
    """A case whose ranks have been asked for."""

    case: Case
    world: RunningWorld
    started_s: float
    limit_s: float


class Engine:
    """Runs cases, one at a time, each on fresh ranks or on those of a pool.

    Attributes:
        spec: What the target asks for.
        cases_after: Cases that will come after the next one; they share the budget with it.
    """

    def __init__(self, spec: Spec, budget: Budget, side: RankSide, loader: Loader) -> None:
        """Make an engine. No process is started yet.

        Args:
            spec: What the target asks for.
            budget: The time of the whole run.
            side: What the ranks have of the run.
            loader: How a fresh interpreter finds the tests again.
        """
        self.spec = spec
        self.cases_after = 0
        self._budget = budget
        self._side = side
        self._loader = loader
        self._launcher: ForkLauncher | None = None
        self._pool: RunningWorld | None = None
        self._worlds = 0
        self._directory: RunDirectory | None = None

    def prepare(self) -> tuple[ForkLauncher, RunDirectory]:
        """Fork the template now, while this process is clean. Without this the first case does it.

        Returns:
            The launcher and the run's folder.

        Raises:
            LaunchError: If the machine has no room for either.
        """
        try:
            if self._directory is None:
                self._directory = RunDirectory(os.environ)
            if self._launcher is None:
                self._launcher = ForkLauncher(
                    self._side, self._loader, self._directory.all_paths, str(self._directory.short)
                )
        except OSError as error:
            raise _no_room("the run", error) from error
        return self._launcher, self._directory

    def run(self, case: Case) -> CaseResult:
        """`start` and `finish`, and once more if ranks could not be had although no test code has run yet."""
        result = self.finish(self.start(case))
        never_began = all(outcome.kind is Kind.NEVER_STARTED for outcome in result.outcomes)
        if result.verdict.cause is Cause.INFRASTRUCTURE and never_began:
            first = result.verdict.reason
            return dataclasses.replace(self.finish(self.start(case)), retried=first)
        return result

    def start(self, case: Case) -> RunningCase:
        """Ask for the ranks of a case; returns as soon as they are asked for.

        Raises:
            LaunchError: If they cannot be had.
            UsageError: If the world is larger than can be.
        """
        check_world_size(case.name, case.world_size)
        if any(rank >= case.world_size for rank in case.expected_exits):
            raise UsageError(
                f"{case.name}: expected_exits = {case.expected_exits!r} in a world of {case.world_size} ranks.\n"
                "Of a rank that does not exist it can neither be met nor fail.\n"
                "Name ranks of the world, from 0."
            )
        limit_s = self._budget.limit_s(case.timeout_s, cases_after=self.cases_after)
        started_s = time.monotonic()
        world, self._pool = self._pool, None
        body = None
        if world is not None and case.pool == world.pool and case.world_size == world.size:
            body = case.body
        else:
            if world is not None and (trouble := self._end(world)):
                warnings.warn(trouble, RuntimeWarning, stacklevel=2)
            self._worlds += 1
            try:
                launcher, directory = self.prepare()
                world = start_world(launcher, self._worlds, case, self.spec, directory, limit_s)
            except LaunchError:
                self._drop_launcher()
                raise
            except OSError as error:
                raise _no_room(case.name, error) from error
        world.supervisor.begin_case(limit_s, keep=bool(case.pool), expected_exits=case.expected_exits, body=body)
        return RunningCase(case, world, started_s, limit_s)

    def finish(self, running: RunningCase) -> CaseResult:
        """Wait for the end of a case, at most until its deadline, and judge it.

        Raises:
            LaunchError: If the ranks could not be made, or could not be got rid of.
        """
        case, world = running.case, running.world
        supervisor = world.supervisor
        with self._closing_if_over(world):
            supervisor.wait_case()
            outcomes = tuple(
                _with_operation(record.outcome(), supervisor.stacks.get(record.rank, ""))
                for record in supervisor.records
            )
        result = verdict(
            outcomes,
            world_size=case.world_size,
            promised=self.spec.promises(case.world_size),
            leaked=supervisor.leaked,
        )
        log_files: dict[int, Path] = {}
        quoted: Sequence[int] = ()
        if result.status is Status.FAILED:
            log_files = {rank: world.directory / f"rank-{rank}.log" for rank in range(case.world_size)}
            quoted = [result.culprit, *result.failing] if result.culprit is not None else list(log_files)
        elif supervisor.is_over:
            shutil.rmtree(world.directory, ignore_errors=True)
        else:
            self._pool = world
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
        with self._closing_if_over(running.world):
            running.world.supervisor.abort()

    def end_pool(self) -> str:
        """Let the ranks of the current pool end, if there is one.

        Returns:
            What went wrong with that; "" if nothing did.
        """
        world, self._pool = self._pool, None
        return self._end(world) if world is not None else ""

    def close(self) -> None:
        """Let everything go and remove the run's folder. Nothing of the run is left after this."""
        if self._pool is not None:
            world, self._pool = self._pool, None
            with contextlib.suppress(LaunchError), self._closing_if_over(world):
                world.supervisor.abort()
        self._drop_launcher()
        if self._directory is not None:
            self._directory.remove()
            self._directory = None

    def _end(self, world: RunningWorld) -> str:
        supervisor = world.supervisor
        with self._closing_if_over(world):
            supervisor.finish(_POOL_END_LIMIT_S)
            outcomes = [record.outcome() for record in supervisor.records]
        result = verdict(outcomes, world_size=world.size, leaked=supervisor.leaked)
        if result.status is not Status.FAILED:
            shutil.rmtree(world.directory, ignore_errors=True)
            return ""
        details = "\n".join(outcome.text for outcome in outcomes if outcome.text)
        return f"the ranks of the pool {world.pool} did not end well: {result.reason}\n{details}".rstrip()

    @contextlib.contextmanager
    def _closing_if_over(self, world: RunningWorld) -> Iterator[None]:
        """Whatever happens, no rank and no descriptor of a world that is not kept outlives this."""
        try:
            yield
        except LaunchError:
            world.close()
            self._drop_launcher()
            raise
        except BaseException:
            with contextlib.suppress(LaunchError):
                world.supervisor.abort()
            world.close()
            raise
        if world.supervisor.is_over:
            world.close()

    def _drop_launcher(self) -> None:
        if self._launcher is not None:
            launcher, self._launcher = self._launcher, None
            launcher.close()


def _with_operation(outcome: RankOutcome, stack: str) -> RankOutcome:
    """What a rank that could not say so itself was waiting in."""
    if outcome.kind in (Kind.HUNG, Kind.STOPPED):
        return dataclasses.replace(outcome, operation=operation_in(stack))
    return outcome


def _no_room(subject: str, error: OSError) -> LaunchError:
    return LaunchError(
        f"{subject}: no ranks could be started: {error}.\n"
        "No room for another file or process, or a temporary folder that cannot be written.\n"
        "Make room, or point TMPDIR (under Bazel: --test_tmpdir) to another place."
    )


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _LOG_TAIL_BYTES))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        # The rank never got as far as opening it.
        return ""
