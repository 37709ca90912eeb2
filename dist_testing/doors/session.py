"""The engine that a unittest class finds: the pytest plugin's, or one made on first use under plain unittest."""

from __future__ import annotations

import atexit
import os
import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from dist_testing.backends import default_backend
from dist_testing.budget import Budget
from dist_testing.doors.rank_unittest import UnittestSide
from dist_testing.errors import UsageError
from dist_testing.joined.place import Place, place_in
from dist_testing.launch.fresh import unittest_loader
from dist_testing.runner.case import CaseResult
from dist_testing.runner.engine import Engine
from dist_testing.runner.report import failure_report
from dist_testing.spec import DEFAULT_WORLD_SIZE, Spec

__all__ = ["Session", "current_session", "open_session", "started_by"]

# What a user types before the name of a test of the file that runs as the program; "" if nobody has said.
_program = [""]


@dataclass(slots=True)
class Session:
    """What all tests of a run share.

    Attributes:
        engine: Runs the cases.
        timeout_s: Limit of a case that names none, in seconds.
        fail_on_missing: Missing hardware is a failure even if nothing was promised.
        ignored_place: This process's in a world that exists, and that the session has not joined; None if there is
            none.
        pause_limit: While the engine keeps the time in the runner itself, nobody else does.
    """

    engine: Engine
    timeout_s: float
    fail_on_missing: bool = False
    ignored_place: Place | None = None
    pause_limit: Callable[[], AbstractContextManager[None]] = nullcontext

    def failure_report(self, result: CaseResult) -> str:
        """The report of a failed case of a class, with the command that runs it alone if that is known."""
        test = result.case.name.removeprefix("__main__.")
        is_of_program = _program[0] and test != result.case.name
        return failure_report(
            result,
            target=self.engine.spec.target,
            reproduce=f"{_program[0]} {shlex.quote(test)}" if is_of_program else "",
        )

    def check_place(self, name: str) -> None:
        """Refuse to make a world in each process of one that exists.

        Raises:
            UsageError: If this is such a process.
        """
        if (place := self.ignored_place) is not None:
            raise UsageError(
                f"{name}: unittest, in a process that is rank {place.rank} of {place.size} already (RANK is set).\n"
                "It would make a world of its own in each of these processes, and a verdict.\n"
                "Use pytest or dist_testing.run_tests(), which join the ranks that exist; or unset RANK."
            )

    def check_declared(self, name: str, world_size: int) -> None:
        """Refuse a world that is larger than the target declares.

        Raises:
            UsageError: Bazel has set aside CPUs and GPUs for what the BUILD file says, not for more.
        """
        spec = self.engine.spec
        if spec.target and world_size > (declared := max(spec.world_sizes)):
            raise UsageError(
                f"{name}: world_size = {world_size}, but {spec.target} declares {declared}.\n"
                "Bazel has set aside CPUs and GPUs for the declared size.\n"
                f"Set world_size = {world_size} in the BUILD file."
            )


def started_by(command: str) -> None:
    """Say what this process was started by, for the commands in reports; the tests are those of `__main__`."""
    _program[0] = command


_sessions: list[Session] = []


def open_session(session: Session) -> None:
    """Make `session` the current one, from now to the end of the process."""
    _sessions[:] = [session]


def current_session() -> Session:
    """The current session; under plain unittest, one with the defaults of the command line."""
    if not _sessions:
        backend = default_backend()
        spec = Spec("", backend, (DEFAULT_WORLD_SIZE,), backend.gpus_per_rank)
        engine = Engine(spec, Budget(), UnittestSide(), unittest_loader())
        atexit.register(engine.close)
        open_session(Session(engine, float(backend.timeout_s), ignored_place=_place()))
    return _sessions[0]


def _place() -> Place | None:
    try:
        return place_in(os.environ)
    except UsageError:
        # RANK alone, or one that cannot be: nobody has made a world.
        return None
