"""What was run, around the records of cases: invocations, runs of targets, and what did not run.

Times are in seconds. A time that ends in `_wall_s` counts from 1970; one that ends in `_at_s` is on the monotonic clock
of its run, to which `RunRecord.wall_zero_s` belongs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dist_testing.core.ground.record import BAD, MAX_S, CaseRecord

# Bazel's words for a test that has passed, or that says nothing.
_FINE = ("", "PASSED", "FLAKY")
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
    """Something that could not be read or does not fit together. The rest of the report is still good.

    Attributes:
        subject: File or target.
        text: What was observed, the likely cause, and the way out.
    """

    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A log that a run has left.

    Attributes:
        name: File name, such as "test.log" or "tests.test_a.py-test_x.rank-0.log".
        text: Its text, shortened in the middle if it is long; "" if it is not on this machine.
        place: Path or address.
    """

    name: str
    text: str
    place: str


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run of a target or of one of its shards; or one run of pytest.

    Attributes:
        target: Label of the target; the name of the file outside Bazel.
        shard: From 1.
        run: From 1, of `--runs_per_test`.
        attempt: From 1; greater if a failed test was repeated.
        invocation: Index of its invocation in the report.
        configuration: Bazel's name of the configuration; "" outside Bazel.
        status: Bazel's word, such as PASSED; "" outside Bazel.
        cached: Origin of the result: "local", "remote", or "" if the test ran.
        strategy: Where the test ran: "remote", "linux-sandbox", ...; "" if unknown.
        host: Machine that ran it; "" if unknown.
        began_wall_s: Wall clock at its begin; None if unknown.
        duration_s: Its seconds.
        wall_zero_s: Wall clock when the monotonic clock of its events was 0; None without events.
        backend: Name of the backend; "" if unknown.
        versions: Name to version of Python, torch and pytest.
        cases: Its cases in order.
        to_come: Number of collected tests that did not begin.
        is_complete: Whether it came to its end, as far as is known.
        logs: Its logs.
        has_results: Whether the cases are known: they were read from a test.xml or an event stream.
    """

    target: str
    shard: int = 1
    run: int = 1
    attempt: int = 1
    invocation: int = 0
    configuration: str = ""
    status: str = ""
    cached: str = ""
    strategy: str = ""
    host: str = ""
    began_wall_s: float | None = None
    duration_s: float = 0.0
    wall_zero_s: float | None = None
    backend: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    cases: tuple[CaseRecord, ...] = ()
    to_come: int = 0
    is_complete: bool = True
    logs: tuple[LogRecord, ...] = ()
    has_results: bool = True

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
        """Whether the run did not pass, by Bazel's word or by one of its cases."""
        return self.is_bad_for_bazel or any(case.status in BAD for case in self.cases)


@dataclass(frozen=True, slots=True)
class NotRun:
    """One line of the skip ledger: something that did not run, and why.

    Attributes:
        kind: "skipped", "incompatible", "not built", "not reached", "ran nothing", "no results", "filtered" or
            "cached".
        target: The target.
        case: The case; "" if it is about the whole target.
        reason: Why.
        count: Number of cases that the line is about.
    """

    kind: str
    target: str
    case: str
    reason: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class InvocationRecord:
    """One invocation of Bazel, or one run of pytest.

    Attributes:
        name: The file that describes it.
        command: Such as "bazel test".
        began_wall_s: Wall clock at its begin; None if unknown.
        duration_s: Seconds; 0 if unknown.
        exit_code: Its exit status; None if unknown.
        exit_name: Bazel's name of it.
        is_complete: Whether it came to its end.
        version: Version of Bazel; "" outside Bazel.
        identifier: Bazel's identifier of it.
        revision: Revision of the sources, if they were clean; "" if unknown.
        test_filter: Value of `--test_filter`.
    """

    name: str
    command: str = ""
    began_wall_s: float | None = None
    duration_s: float = 0.0
    exit_code: int | None = None
    exit_name: str = ""
    is_complete: bool = True
    version: str = ""
    identifier: str = ""
    revision: str = ""
    test_filter: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All that was read.

    Attributes:
        invocations: What was run, at least one unless nothing could be read.
        runs: All runs of targets.
        targets: Labels of the targets that Bazel speaks of, also of those without a run; empty outside Bazel.
        not_run: The skip ledger, except for skipped cases (`facts.ledger` adds these).
        problems: What could not be read.
    """

    invocations: tuple[InvocationRecord, ...] = ()
    runs: tuple[RunRecord, ...] = ()
    targets: tuple[str, ...] = ()
    not_run: tuple[NotRun, ...] = ()
    problems: tuple[Problem, ...] = ()
