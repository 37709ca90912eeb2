"""Defines a case and its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.outcomes import Cause, Kind, RankOutcome, Verdict, left_behind
from dist_testing.core.ground.record import Fault, Ledger

# Attribute of a test method with its `Case.settings`. `functools.wraps` copies it.
SETTINGS = "__dist_settings__"
# Attribute of a unittest class whose methods run on ranks.
RUNS_ON_RANKS = "__dist_runs_on_ranks__"
# State that a case on a worker pool may leave changed, if its project says so. The prefix and a name, or a pattern such
# as "env:OMP_*", stand for single environment variables.
ALL_ENV = "env"
ENV_PREFIX = "env:"
KEEPABLE = ("cwd", ALL_ENV, "files", "logging", "processes", "sys.path", "threads", "torch", "umask")


@dataclass(frozen=True, slots=True)
class CaseBody:
    """Tells the ranks what to run: fields for the engine and the ranks, and the content for the front end.

    Attributes:
        front_end: Name of the front end that finds the test on a rank: "pytest" or "unittest".
        content: How the front end finds the test, as text that only the front end reads.
        only_test: The only test that a fresh interpreter must load, by its name in the front end; None if the front end
            decides.
        keeps_state: On a worker pool: whether the case may leave state other than groups to the next case.
        keeps_groups: On a worker pool: whether the case may leave its groups to the next case.
        strict_calls: Whether the case fails if the ranks pass, but have made different collective calls.
        may_change: On a worker pool: the state that the case may leave changed, by the names of `KEEPABLE`.
    """

    front_end: str
    content: str = ""
    only_test: str | None = None
    keeps_state: bool = False
    keeps_groups: bool = False
    strict_calls: bool = False
    may_change: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """One test that runs on one world.

    Attributes:
        name: Name that the user knows: a pytest node id, or `module.Class.method`.
        world_size: Number of ranks.
        body: What the ranks run.
        timeout_s: The case's own limit, in seconds.
        isolation: Name of the isolation (`core.launch.isolation`).
        pool: Name of the worker pool, or of the process whose threads are the ranks. Cases with equal pool and size
            share it. "" for ranks that live for one case.
        init: Whether the library makes the default group.
        with_store: Whether the library serves a store for the world, at MASTER_ADDR and MASTER_PORT. Threads always
            have one, in memory.
        expected_exits: Rank to how its process must end; a negative number is a signal, as in `subprocess`.
        debug_rank: The rank that gets the terminal, while the other ranks wait without a limit. None for none.
        settings: What the test and its target ask of add-ons, by their names.
        exit_0_passes: Whether a rank whose process ends with exit code 0 has passed, also without a report. True for
            programs, whose result is their exit code.
        limit_switch: Where the user sets another limit; an object of "set".
    """

    name: str
    world_size: int
    body: CaseBody
    timeout_s: float
    isolation: str
    pool: str = ""
    init: bool = True
    with_store: bool = True
    expected_exits: Mapping[int, int] = field(default_factory=dict)
    debug_rank: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    exit_0_passes: bool = False
    limit_switch: str = "the marker's timeout or --dist-timeout"


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning of test code: the name of its class, its text, and the place that it names."""

    category: str
    text: str
    filename: str
    line_number: int


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of a case.

    Attributes:
        case: The case.
        verdict: The verdict on all outcomes.
        outcomes: One per rank, by rank.
        started_s: When the ranks were asked for, on the runner's monotonic clock.
        duration_s: From then until all ranks were gone, in seconds; on a worker pool, until all had passed.
        limit_s: Limit of the case, in seconds.
        logs: Rank to the end of its output, for ranks that a failure report quotes.
        log_files: Rank to the file with all of its output, which exists until the engine is closed.
        text_files: Rank to a file with its texts that were too long for a message; it exists as long as `log_files`.
        stacks: Rank to its stacks, of ranks that were running when something went wrong.
        leaked: Command lines of processes that were left behind.
        left: What the ranks have left behind in resources of add-ons, a text each.
        retried: Why a first try did not count; "" if there was none.
        warnings: The warnings of all ranks, each with the ranks that issued it, ascending.
        end_session: Why a rank wants no further test to run; "" if none does.
        facts: Facts of add-ons about the case, by the names that they have as properties of the test.
        notes: More facts that may explain a failure, one line each.
        ledgers: The collective ledgers that the runner has read. Their times are on its monotonic clock.
        faults: The faults on purpose that have happened. Their times are on the runner's monotonic clock.
    """

    case: Case
    verdict: Verdict
    outcomes: tuple[RankOutcome, ...]
    started_s: float
    duration_s: float
    limit_s: float
    logs: Mapping[int, str] = field(default_factory=dict)
    log_files: Mapping[int, Path] = field(default_factory=dict)
    text_files: Mapping[int, Path] = field(default_factory=dict)
    stacks: Mapping[int, str] = field(default_factory=dict)
    leaked: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    retried: str = ""
    warnings: Mapping[Warned, Sequence[int]] = field(default_factory=dict)
    end_session: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    ledgers: tuple[Ledger, ...] = ()
    faults: tuple[Fault, ...] = ()

    @property
    def failures(self) -> list[RankOutcome]:
        """All failures of the culprit, then of the other ranks that failed by themselves. Excludes victims."""
        verdict = self.verdict
        ranks = [] if verdict.culprit is None else [verdict.culprit, *verdict.failing]
        return [
            failure
            for rank in ranks
            for failure in (self.outcomes[rank], *self.outcomes[rank].further)
            # After its failure, the teardown of a rank may fail because its peers are gone.
            if failure is self.outcomes[rank] or not failure.collateral
        ]

    @property
    def has_only_raised(self) -> bool:
        """Whether it failed by exceptions and left nothing behind: the one way in which a failure can be expected."""
        return self._has_raised and left_behind(self.leaked, self.left) is None

    def with_exceptions_expected(self) -> CaseResult:
        """Return the result with the verdict on what it left behind, if it also failed by exceptions; else itself."""
        left = left_behind(self.leaked, self.left) if self._has_raised else None
        return self if left is None else replace(self, verdict=left)

    @property
    def _has_raised(self) -> bool:
        # Without a culprit, a watcher has ended the case.
        kinds = {failure.kind for failure in self.failures}
        return self.verdict.cause is Cause.FAILURE and kinds == {Kind.RAISED}


class CaseFailedError(AssertionError):
    """A case of a unittest class failed on its ranks; the text is the whole report.

    Attributes:
        result: The result that the engine found.
    """

    def __init__(self, text: str, result: CaseResult) -> None:
        super().__init__(text)
        self.result = result


def check_keepable(where: str, names: object) -> tuple[str, ...]:
    """Check a user's list of what cases on a worker pool may leave changed, and return it.

    A UsageError refuses all but names of `KEEPABLE` and of variables. `where` is the user's place, such as
    "dist_pool_keeps".
    """
    listed: Sequence[object] = names if isinstance(names, list | tuple) else [names]
    for name in listed:
        is_variable = isinstance(name, str) and name.startswith(ENV_PREFIX) and name != ENV_PREFIX
        if not is_variable and name not in KEEPABLE:
            raise UsageError(
                f"{where} has {name!r}; expected {', '.join(KEEPABLE)}, or {ENV_PREFIX}NAME.\n"
                "It lists the state that a test in a worker pool may leave changed for the next test.\n"
                f"Write cwd {ENV_PREFIX}TOKENIZERS_PARALLELISM, for example; {ENV_PREFIX}OMP_* names several variables."
            )
    return tuple(map(str, listed))
