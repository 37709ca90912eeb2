"""Exit codes of ranks: those that a test declares, and those that stand for outcomes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.outcomes import Kind, RankOutcome, are_exits
from dist_testing.core.ground.skips import TEST_SKIPS
from dist_testing.core.rank.bootstrap import FAILED_EXIT_CODE

_Function = TypeVar("_Function", bound=Callable[..., Any])
# Part of a function's __dict__, which functools.wraps copies.
_MARK = "__dist_expected_exits__"
_STOPPED_BY_RUNNER = -9


def expected_exits(exits: Mapping[int, int]) -> Callable[[_Function], _Function]:
    """Declare the exit codes of some ranks' processes in a fault test; the test fails if they end otherwise.

    Args:
        exits: Rank, from 0, to exit code, at most 255; a negative one is a signal, as in `subprocess`:
            `{1: -signal.SIGKILL}`.

    Raises:
        UsageError: If `exits` is not such a table, or empty.
    """
    if not (are_exits(exits) and exits):
        raise UsageError(
            f"@expected_exits({exits!r}): expected a table of one or more ranks, each with an exit code.\n"
            "Ranks are numbers from 0; exit codes are at most 255, and a negative one is a signal.\n"
            "Write @expected_exits({1: -9}), for example."
        )

    def decorator(function: _Function) -> _Function:
        setattr(function, _MARK, {int(rank): int(code) for rank, code in exits.items()})
        return function

    return decorator


def declared_exits(function: Callable[..., Any]) -> Mapping[int, int]:
    """Return the table that `expected_exits` declares for a test method; empty if it is not decorated."""
    return cast(Mapping[int, int], getattr(function, _MARK, {}))


def exit_code(outcome: RankOutcome) -> int:
    """Return the exit code that stands for an outcome; a negative one is a signal."""
    match outcome.kind:
        case Kind.PASSED:
            return 0
        case Kind.SKIPPED:
            codes = {skip.message: skip.exit_code for skip in TEST_SKIPS.values()}
            return codes.get(outcome.reason, TEST_SKIPS["generic"].exit_code)
        case Kind.EXITED:
            return outcome.exit_code or 0
        case Kind.SIGNALLED:
            return -(outcome.signal or 0)
        case Kind.HUNG | Kind.STOPPED:
            return _STOPPED_BY_RUNNER
        case _:
            return FAILED_EXIT_CODE


def forgiven(outcome: RankOutcome, required: int | None) -> RankOutcome:
    """Return the outcome, or a pass if the rank ended by the required code; None stands for any code or signal."""
    ended = outcome.kind in (Kind.EXITED, Kind.SIGNALLED)
    if ended and (required is None or exit_code(outcome) == required):
        return dataclasses.replace(outcome, kind=Kind.PASSED)
    return outcome


def names_of(method: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    """Return all forms in which a list or dict of test methods may hold this one: bound or not, decorated or not."""
    names = [method]
    while inner := getattr(names[-1], "__func__", None) or getattr(names[-1], "__wrapped__", None):
        names.append(inner)
    return tuple(names)
