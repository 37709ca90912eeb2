"""The messages about cases, between the runner and the ranks of a world.

    runner  <-- RankMessage ----   rank
    runner  --- Instruction ---->  rank

A rank that imports the tests itself sends `Importing` before it does. A rank sends `Ready` once, a `RankReport` as soon
as an outcome is known (peers must not wait for a teardown to learn of a failure), and `Done` as the last message before
it leaves; in between, `Warned` for warnings of test code, `EndSession` if it wants no further test to run, and `Extra`
with what a part of an add-on tells the watcher of the world or asks it. The runner does not trust these: a rank runs
test code, and test code goes wrong.

When every rank has sent a good report, the runner sends an instruction: `NextCase`, with another case for the same
world, or `FinishWorld`, which every rank answers with `Done`. The rank that serves the store then waits for
`LeaveWorld`. So no rank closes its connections, or the store, while another rank still needs them.

A field is declared here once; `core.ground.codec` derives its format and its checks from the annotation.
Raise the schema number of a family with every change of one of its messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from dist_testing.core.ground.case import CaseBody, Warned
from dist_testing.core.ground.codec import Family
from dist_testing.core.ground.errors import FrameError
from dist_testing.core.ground.outcomes import Kind, ReportDetails

# A report with two texts of the largest size fits (`core.ground.error_text.MAX_TEXT_CHARS`). A larger message must not
# fill the runner's memory.
MAX_FRAME_BYTES = 8 * 1024 * 1024

ReportedKind: TypeAlias = Literal[Kind.PASSED, Kind.SKIPPED, Kind.RAISED, Kind.EXITED, Kind.NEVER_STARTED]


@dataclass(frozen=True, slots=True)
class RankReport(ReportDetails):
    """The outcome of a case on one rank, as the rank itself reports it.

    `ReportDetails` declares the other fields: they are the same in `core.ground.outcomes.RankOutcome`.

    Raises:
        ValueError: If the rank exited without an exit code, or has one without an exit.
    """

    kind: ReportedKind
    phase: str

    def __post_init__(self) -> None:
        if (self.kind is Kind.EXITED) != (self.exit_code is not None):
            raise ValueError(f"kind {self.kind.value!r} with exit_code {self.exit_code!r}")


@dataclass(frozen=True, slots=True)
class Importing:
    """The rank begins to import the tests, so that from now on it runs test code.

    The rank sends it before any test code could prevent that, and a message that was sent cannot be taken back.
    """


@dataclass(frozen=True, slots=True)
class Ready:
    """The rank exists. Its time counts from now on."""


@dataclass(frozen=True, slots=True)
class EndSession:
    """Test code wants no further test to run, for this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Extra:
    """A message between the parts of an add-on, from a rank to the watcher of its world, or back as an answer.

    Attributes:
        add_on: Its name.
        payload: Only the add-on reads it.
    """

    add_on: str
    payload: str


@dataclass(frozen=True, slots=True)
class Done:
    """The rank sends no more messages."""


@dataclass(frozen=True, slots=True)
class NextCase:
    """Run another case."""

    body: CaseBody


@dataclass(frozen=True, slots=True)
class FinishWorld:
    """Destroy the groups, then send `Done`: there are no more cases."""


@dataclass(frozen=True, slots=True)
class LeaveWorld:
    """End: every rank has sent `Done`, so no rank needs the store."""


RankMessage: TypeAlias = Importing | Ready | RankReport | Warned | EndSession | Extra | Done
RANK_MESSAGES: Family[RankMessage] = Family(
    "message of a rank", 8, get_args(RankMessage), max_bytes=MAX_FRAME_BYTES, error=FrameError
)

Instruction: TypeAlias = NextCase | FinishWorld | LeaveWorld | Extra
INSTRUCTIONS: Family[Instruction] = Family("instruction to a rank", 4, get_args(Instruction))
