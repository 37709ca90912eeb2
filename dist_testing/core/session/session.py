"""The session that all tests of a run share, and what both front ends do with the result of a case."""

from __future__ import annotations

import shlex
import sys
import unittest
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.kept_files import ReportFolder
from dist_testing.core.engine.needs import Lack
from dist_testing.core.engine.report import failure_report, missing_hardware
from dist_testing.core.events.event import EventStream
from dist_testing.core.ground.case import CaseFailedError, CaseResult
from dist_testing.core.ground.error_text import ranks_text
from dist_testing.core.ground.errors import PromiseError, UsageError
from dist_testing.core.ground.outcomes import Status
from dist_testing.core.ground.skips import is_about_hardware
from dist_testing.core.session.existing_world import ExistingRank
from dist_testing.core.session.offered_session import open_offered_session

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

# The command that runs the test file; the name of a test follows it. "" if it is unknown.
_program = [""]


@dataclass(slots=True)
class Session:
    """Holds the objects that all tests of a run share.

    Attributes:
        engine: Runs the cases.
        timeout_s: Limit of a case without a limit of its own, in seconds.
        fail_on_missing: Whether missing hardware is a failure although the configuration does not promise it.
        strict_collectives: Whether a case fails if its ranks make different calls, unless the case says otherwise.
        ignored_rank_info: Set if this process is a rank of an existing world, and the session makes worlds of its own.
        reports: Where reports go that are too long for the log.
        pause_limit: Suspends the runner's own time limit while the engine watches the deadline of a case.
    """

    engine: Engine
    timeout_s: float
    fail_on_missing: bool = False
    strict_collectives: bool = False
    ignored_rank_info: ExistingRank | None = None
    pause_limit: Callable[[], AbstractContextManager[None]] = nullcontext
    reports: ReportFolder = field(default_factory=ReportFolder)

    def is_strict(self, own: bool | None) -> bool:
        """Return whether different calls fail a case: its own choice, else that of the session."""
        return self.strict_collectives if own is None else own

    def judge(self, result: CaseResult, error: type[CaseFailedError] = CaseFailedError) -> None:
        """Report the verdict of a case to unittest; do nothing if it passed.

        Args:
            result: The result of the case.
            error: What to raise if the case failed; its text is the report, with the command that runs the case alone
                if that is known.

        Raises:
            unittest.SkipTest: If all ranks skip for the same reason.
            CaseFailedError: If the case failed.
        """
        # pytest leaves out the frame.
        __tracebackhide__ = True
        match result.verdict.status:
            case Status.SKIPPED:
                raise unittest.SkipTest(result.verdict.reason)
            case Status.FAILED:
                test = result.case.name.removeprefix("__main__.")
                is_of_program = _program[0] and test != result.case.name
                text = failure_report(
                    result,
                    target=self.engine.spec.target,
                    reproduce=f"{_program[0]} {shlex.quote(test)}" if is_of_program else "",
                    keep=lambda whole: self.reports.keep(result, whole),
                )
                raise error(text, result)

    def promise_error(self, name: str, missing: str, world_size: int) -> PromiseError | None:
        """Return the error of a case that lacks something; None if the case is skipped.

        It is an error to lack hardware that the configuration promises, or any hardware with `fail_on_missing`.
        """
        promised = self.engine.spec.promises(world_size)
        is_hardware = isinstance(missing, Lack) or is_about_hardware(missing)
        if not (is_hardware and (promised or self.fail_on_missing)):
            return None
        return PromiseError(missing_hardware(name, missing, promised=promised))

    def check_no_existing_rank(self, name: str) -> None:
        """Refuse to make a world in each process of an existing one."""
        if (rank_info := self.ignored_rank_info) is not None:
            raise UsageError(
                f"{name}: unittest runs in a process that is already rank {rank_info.rank} of {rank_info.size} "
                "(RANK is set).\n"
                "Each of these processes would make a world of its own, with its own verdict.\n"
                "Use pytest or dist_testing.run_tests(), which run on the existing ranks; or unset RANK."
            )

    def check_declared(self, name: str, world_size: int) -> None:
        """Refuse a world that is larger than the target declares."""
        spec = self.engine.spec
        if spec.target and world_size > (declared := max(spec.world_sizes)):
            raise UsageError(
                f"{name}: world_size = {world_size}, but {spec.target} declares {declared}.\n"
                "Bazel has reserved CPUs and GPUs for the declared size only.\n"
                f"Set world_size = {world_size} in the BUILD file."
            )


def started_by(command: str) -> None:
    """Set the command that started this process, for the commands in reports; its tests are those of `__main__`."""
    _program[0] = command


_sessions: list[Session] = []


def open_session(session: Session) -> None:
    """Make `session` the current session. A test may run pytest in its process, and so open a further one."""
    _sessions.append(session)


def close_session(session: Session) -> None:
    """End a session: the one before it is the current one again."""
    _sessions.remove(session)


def current_session() -> Session | None:
    """Return the current session; None under plain unittest, before the first test of a class of ours."""
    if not _sessions:
        open_offered_session()
    return _sessions[-1] if _sessions else None


def event_stream() -> EventStream:
    """Return the stream of the session's events, for a sink of an add-on or a conftest.py.

        @pytest.hookimpl(trylast=True)
        def pytest_configure(config):
            event_stream().subscribe(print, CaseRecorded, name="the printed cases")

    Raises:
        UsageError: If this process has no session.
    """
    if (session := current_session()) is None:
        raise UsageError(
            "event_stream(): this process has no session of dist_testing.\n"
            "pytest opens it in pytest_configure of the plugin, and unittest before the first test on ranks.\n"
            "Call it later: in a pytest_configure hook, use @pytest.hookimpl(trylast=True)."
        )
    return session.engine.events


def warnings_of(result: CaseResult) -> Iterator[warnings.WarningMessage]:
    """Yield each warning of the ranks once, with its ranks."""
    for warning, ranks in result.warnings.items():
        category = loaded_class(warning.category)
        yield warnings.WarningMessage(
            f"{warning.text} [{ranks_text(ranks)}]",
            category if category is not None and issubclass(category, Warning) else UserWarning,
            warning.filename,
            warning.line_number,
        )


def loaded_class(name: str) -> type | None:
    """Return the class of that name, with its module, if the module is loaded. A rank must not trigger an import."""
    module, _, qualified = name.rpartition(".")
    found = getattr(sys.modules.get(module), qualified, None)
    return found if isinstance(found, type) else None
