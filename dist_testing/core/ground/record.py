"""The record of a case: how it ended, what each rank did, and when. Everything that shows results reads records.

The engine makes one from the result of a case, and a front end adds what its test framework says. It is one JSON
object: `record.schema.json` in this folder describes it. Times are seconds after the begin of the case; `began_at_s`
itself is on the monotonic clock of the machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

SCHEMA_FILE = Path(__file__).with_suffix(".schema.json")

# The worst first. "error": the machine failed and not the test. "unfinished": the run ended within the case.
Status = Literal["failed", "error", "unfinished", "xpassed", "xfailed", "skipped", "passed"]
STATUSES: tuple[Status, ...] = ("failed", "error", "unfinished", "xpassed", "xfailed", "skipped", "passed")
BAD: frozenset[Status] = frozenset({"failed", "error", "unfinished"})
# Values of `core.ground.outcomes.Cause` for which the machine is to blame and not the test.
NO_HARDWARE = "promised hardware missing"
OF_THE_MACHINE = ("infrastructure", NO_HARDWARE)

# Decimal places of times: microseconds.
DIGITS = 6
# Ten years: no run takes so long. A file with a larger time is damaged. Seconds.
MAX_S = 3e8
Seconds = Annotated[float, MAX_S]
# A text names at most so many links.
_MAX_LINKS = 20


class Phase(NamedTuple):
    """One phase of a rank: "start", "import", "init", "setup", "call", "teardown" or "destroy", and its times."""

    name: str
    begin_s: Seconds
    end_s: Seconds


class LedgerCall(NamedTuple):
    """One collective call of a rank, as torch's flight recorder knows it.

    Attributes:
        group: torch's name of the group, such as "0" for the default group.
        number: Number of the call among those of its group, from 1.
        backend: torch's backend that runs it, such as "gloo".
        operation: Such as "all_reduce".
        inputs: Shapes and types of its inputs, such as "[[3]] Float".
        is_done: Whether it has ended.
        begin_s: When it began; None if torch does not say.
        end_s: When torch saw its end; None if it has not ended, or if torch does not say.
    """

    group: str
    number: int
    backend: str
    operation: str
    inputs: str
    is_done: bool
    begin_s: Seconds | None
    end_s: Seconds | None

    @property
    def name(self) -> str:
        """The call in words: "all_reduce #3 of group 0"."""
        return f"{self.operation} #{self.number} of group {self.group}"

    @property
    def words(self) -> str:
        """The call with its inputs, and whether it has ended."""
        return f"{self.name}, {self.inputs or 'no inputs'}: {'ended' if self.is_done else 'not ended'}"


class LinkEnds(NamedTuple):
    """A link between simulated nodes: from which node, to which node."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the runner has last read of a rank's collective ledger, in a case whose ranks wait for each other.

    Attributes:
        rank: The rank.
        read_s: When the runner read it.
        state: What the rank does, in words: "ended the test", "waits in all_reduce #1 of the default group", or why it
            can go on.
        place: File and line of the test that its main thread is in; "" if that is not known.
        calls: Its last collective calls, in the order in which they began, and all that have not ended.
    """

    is_open: ClassVar[bool] = True

    rank: int
    read_s: Seconds
    state: str
    place: str = ""
    calls: tuple[LedgerCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that the test or its plan has asked for, and that has happened; `node_down` is two: links, and a kill.

    Attributes:
        at_s: When it had happened.
        action: "kill", "stop", "cont", "power off" (a kill of the ranks of a node), or "links".
        ranks: Ranks that it has ended or stopped, or that go on; empty for links.
        links: Links that have a new rule; empty for a fault of ranks.
        rule: The new rule in words: "cut", "whole", or such as "delay 20 ms"; "" for a fault of ranks.
        by: The rank that asked for it; None for the plan.
        asked_s: When it was asked for.
    """

    is_open: ClassVar[bool] = True

    at_s: Seconds
    action: str
    ranks: tuple[int, ...] = ()
    links: tuple[LinkEnds, ...] = ()
    rule: str = ""
    by: int | None = None
    asked_s: Seconds = 0.0

    @property
    def text(self) -> str:
        """In words, with who asked for it: "kill of rank 2, by rank 0"."""
        what = fault_in_words(self.action, self.ranks, self.links, self.rule)
        return f"{what}, by {'the plan' if self.by is None else f'rank {self.by}'}"


@dataclass(frozen=True, slots=True)
class RankRecord:
    """What is known of one rank of a case.

    Attributes:
        rank: The rank, from 0.
        outcome: A value of `core.ground.outcomes.Kind`; "" if unknown.
        description: The outcome in one line that continues "rank 3"; "" for a pass.
        phase: Its phase when it ended.
        operation: The operation of torch.distributed that it was in; "" if none.
        collateral: "lost" or "late" if it only lost a peer, or waited for one in vain; else "".
        exit_code: Exit code of its process, for "exited".
        signal: Number of the signal, for "signalled".
        pid: Its process, if it was started for this case; threads of one process have the same.
        started_s: When its process existed; None as `pid`.
        ready_s: When it was ready to begin; the limit of the case starts when all ranks are. None as `pid`.
        seen_s: When the runner saw the first sign of its end; None if unknown.
        phases: Its phases in order, by its own word.
        lost_phases: Number of missing earlier phases: a rank keeps only the last few.
        warnings: Its warnings: category, text and place, in one line each.
    """

    is_open: ClassVar[bool] = True

    rank: int
    outcome: str = ""
    description: str = ""
    phase: str = ""
    operation: str = ""
    collateral: str = ""
    exit_code: int | None = None
    signal: int | None = None
    pid: int | None = None
    started_s: Seconds | None = None
    ready_s: Seconds | None = None
    seen_s: Seconds | None = None
    phases: tuple[Phase, ...] = ()
    lost_phases: int = 0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CaseRecord:
    """The record of one case.

    Attributes:
        name: Its name, the same in every run: "dir.test_file.Class.test_x[1]".
        status: How it ended.
        nodeid: pytest's name of it, which names its logs; "" if unknown.
        when: The part of the test that decided: "collect", "setup", "call" or "teardown".
        message: One line: the reason of a skip or an expected failure, or who failed and how.
        text: The whole report of a failure.
        duration_s: Seconds; 0 if unknown.
        began_at_s: When it began, on the monotonic clock; None if unknown.
        world_size: Number of ranks; 0 if it ran in the runner, or if it is unknown.
        isolation: Name of the isolation; "" if unknown.
        cause: A value of `core.ground.outcomes.Cause`; "" if it did not fail on ranks.
        culprit: The rank that failed first; None if no single rank is to blame.
        failing: Other ranks that failed by themselves, in the order of failing.
        victims: Ranks that failed only because another rank failed.
        ranks: What is known of each rank.
        ledgers: The collective ledgers that the runner has read.
        faults: The faults on purpose, in order.
        leaked: Command lines of processes that had to be killed after it.
        tries: How often the engine was asked for it.
        properties: Names and values, as in JUnit's XML; facts of add-ons, such as "gpus", are among them.
    """

    is_open: ClassVar[bool] = True

    name: str
    status: Status
    nodeid: str = ""
    when: str = "call"
    message: str = ""
    text: str = ""
    duration_s: Seconds = 0.0
    began_at_s: Seconds | None = None
    world_size: int = 0
    isolation: str = ""
    cause: str = ""
    culprit: int | None = None
    failing: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()
    ranks: tuple[RankRecord, ...] = ()
    ledgers: tuple[Ledger, ...] = ()
    faults: tuple[Fault, ...] = ()
    leaked: tuple[str, ...] = ()
    tries: int = 1
    properties: tuple[tuple[str, object], ...] = ()

    @property
    def has_run(self) -> bool:
        """Whether the body of the test ran, also if it failed as expected."""
        return self.status != "skipped" and not (self.status == "xfailed" and self.message.startswith("[NOTRUN]"))


def name_parts(nodeid: str) -> tuple[list[str], str]:
    """Split a node id into file, classes and function, and its parameters, which may contain any text."""
    head, bracket, parameters = nodeid.partition("[")
    return head.split("::"), bracket + parameters


def case_name(nodeid: str) -> str:
    """Return the name of a case of pytest: "dir.test_file.Class.test_x[1]". A file without a test keeps its path."""
    (path, *names), parameters = name_parts(nodeid)
    return ".".join([module_of(path), *names]) + parameters if names else path + parameters


def module_of(path: str) -> str:
    """Return the dotted name of a file."""
    return path.removesuffix(".py").replace("/", ".")


def fault_in_words(action: str, ranks: Sequence[int], links: Iterable[tuple[int, int]], rule: str) -> str:
    """Return a fault in words: of ranks, or the new rule of links."""
    if ranks:
        return f"{action} of rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
    named = [f"{source}->{target}" for source, target in links]
    shown = [*named[:_MAX_LINKS], "..."] if len(named) > _MAX_LINKS else named
    return f"links between nodes {', '.join(shown)}: {rule}"
