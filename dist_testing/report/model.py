"""What was run, around the records of cases: invocations, runs of targets, and what did not run.

Times are in seconds. A time that ends in `_wall_s` counts from 1970; one that ends in `_at_s` is on the monotonic clock
of its run, to which `RunRecord.wall_zero_s` belongs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dist_testing.core.ground.record import BAD, MAX_S, CaseRecord

# Bazel's words for a test that has passed, or that says nothing.
_FINE = ("", "PASSED", "FLAKY")
# Exit statuses of pytest for a run that has passed, or that had no tests, of which the skip ledger tells.
FINE_EXITS = (None, 0, 5)
# What the attempts at the same work share: invocation, target, configuration, shard and run.
Action = tuple[int, str, str, int, int]


def bounded(seconds: float) -> float:
    """Return a duration of at most `MAX_S`, so that sums of durations stay numbers."""
    return min(max(seconds, 0.0), MAX_S) if seconds == seconds else 0.0


def is_label(name: str) -> bool:
    """Return whether a name is the label of a target, and not that of a file."""
    return name.startswith(("//", "@"))


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that could not be read or does not fit together. The rest of the report is still good."""

    subject: str  # file or target
    text: str  # what was observed, the likely cause, and the way out


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A log that a run has left."""

    name: str  # file name, such as "test.log" or "tests.test_a.py-test_x.rank-0.log"
    text: str  # its text, shortened in the middle if it is long; "" if it is not on this machine
    place: str  # path or address


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of one run."""

    xml: Path | None = None  # its test.xml; None if there is none
    streams: Sequence[Path] = ()  # its event streams
    archive: Path | None = None  # the archive of its undeclared outputs; None if it may be in their folder
    folder: Path | None = None  # the folder of its undeclared outputs, which may not exist
    log: Path | None = None  # its test.log, which may not exist


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run of a target or of one of its shards; or one run of pytest."""

    target: str  # label of the target; the name of the file outside Bazel
    shard: int = 1  # from 1
    run: int = 1  # from 1, of `--runs_per_test`
    attempt: int = 1  # from 1; greater if a failed test was repeated
    invocation: int = 0  # index of its invocation in the report
    configuration: str = ""  # Bazel's name of the configuration; "" outside Bazel
    status: str = ""  # Bazel's word, such as PASSED; "" outside Bazel
    cached: str = ""  # origin of the result: "local", "remote", or "" if the test ran
    strategy: str = ""  # where the test ran: "remote", "linux-sandbox", ...; "" if unknown
    host: str = ""  # machine that ran it; "" if unknown
    began_wall_s: float | None = None  # wall clock at its begin; None if unknown
    duration_s: float = 0.0
    wall_zero_s: float | None = None  # wall clock when the monotonic clock of its events was 0; None without events
    backend: str = ""  # name of the backend; "" if unknown
    versions: dict[str, str] = field(default_factory=dict)  # name to version of Python, torch and pytest
    cases: tuple[CaseRecord, ...] = ()
    to_come: int = 0  # number of collected tests that did not begin
    is_complete: bool = True  # whether it came to its end, as far as is known
    exit_code: int | None = None  # its exit status by its events; None if unknown
    logs: tuple[LogRecord, ...] = ()
    has_results: bool = True  # whether the cases are known: they were read from a test.xml or an event stream

    @property
    def part(self) -> str:
        """Shard, run and attempt in words, as far as they are not 1: "shard 2, attempt 2"."""
        parts = {"shard": self.shard, "run": self.run, "attempt": self.attempt}
        return ", ".join(f"{name} {number}" for name, number in parts.items() if number > 1)

    @property
    def in_part(self) -> str:
        """`part` in brackets, to follow other words: " (shard 2)"; "" if there is none."""
        return f" ({self.part})" if self.part else ""

    @property
    def suite(self) -> str:
        """The target; "" outside Bazel, where `target` is the name of a file, which each run may choose anew."""
        return self.target if is_label(self.target) else ""

    @property
    def action(self) -> Action:
        """What an attempt repeats: all attempts at one shard of one run have the same action."""
        return self.invocation, self.target, self.configuration, self.shard, self.run

    @property
    def is_bad_for_bazel(self) -> bool:
        """Whether Bazel's word means that the run did not pass."""
        return self.status not in _FINE

    @property
    def is_bad(self) -> bool:
        """Whether the run did not pass, by Bazel's word, outside Bazel by its exit status, or by one of its cases."""
        ended_badly = not self.status and self.exit_code not in FINE_EXITS
        return self.is_bad_for_bazel or ended_badly or any(case.status in BAD for case in self.cases)


@dataclass(frozen=True, slots=True)
class NotRun:
    """One line of the skip ledger: something that did not run, and why."""

    # "skipped", "incompatible", "not built", "not reached", "ran nothing", "no results", "filtered" or "cached".
    kind: str
    target: str
    case: str  # the case; "" if it is about the whole target
    reason: str
    count: int = 1  # number of cases that the line is about


@dataclass(frozen=True, slots=True)
class InvocationRecord:
    """One invocation of Bazel, or one run of pytest."""

    name: str  # the file that describes it
    command: str = ""  # such as "bazel test"
    began_wall_s: float | None = None  # wall clock at its begin; None if unknown
    duration_s: float = 0.0  # seconds; 0 if unknown
    exit_code: int | None = None  # its exit status; None if unknown
    exit_name: str = ""  # Bazel's name of it
    is_complete: bool = True  # whether it came to its end
    version: str = ""  # version of Bazel; "" outside Bazel
    identifier: str = ""  # Bazel's identifier of it
    revision: str = ""  # revision of the sources, if they were clean; "" if unknown
    test_filter: str = ""  # value of `--test_filter`


@dataclass(frozen=True, slots=True)
class Report:
    """All that was read."""

    invocations: tuple[InvocationRecord, ...] = ()  # what was run, at least one unless nothing could be read
    runs: tuple[RunRecord, ...] = ()  # all runs of targets
    # Labels of the targets that Bazel speaks of, also of those without a run; empty outside Bazel.
    targets: tuple[str, ...] = ()
    not_run: tuple[NotRun, ...] = ()  # the skip ledger, except for skipped cases (`facts.ledger` adds these)
    problems: tuple[Problem, ...] = ()  # what could not be read

    @property
    def every_target(self) -> set[str]:
        """The targets that ran, and those that Bazel speaks of."""
        return {run.target for run in self.runs} | set(self.targets)
