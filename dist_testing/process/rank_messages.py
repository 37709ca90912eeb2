"""The messages about cases, between the runner and the ranks of a world.

    runner  <-- RankMessage ----   rank
    runner  --- Instruction ---->  rank

A rank sends `Ready` once, a `RankReport` as soon as an outcome is known (peers must not wait for a teardown to learn of
a failure), and `Done` as the last message before it leaves; in between, `Warned` for warnings of test code, and
`EndSession` if it wants no further test to run. The runner does not trust these: a rank runs test code, and test code
goes wrong.

The runner answers a good report with an instruction when every rank has sent one: `NextCase`, with another case for the
same world, or `FinishWorld`, which every rank answers with `Done`. Then comes `LeaveWorld`, for which the rank that
serves the store waits. So no rank closes its connections, or the store, while another one still needs them.

A field is declared here once; `dist_testing.process.codec` derives from the annotation how it is written and checked.
Raise the schema number of a family with every change of one of its messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from dist_testing.case import CaseBody
from dist_testing.errors import FrameError
from dist_testing.outcomes import Kind, ReportDetails
from dist_testing.process.codec import Family

__all__ = [
    "INSTRUCTIONS",
    "MAX_FRAME_BYTES",
    "RANK_MESSAGES",
    "Done",
    "EndSession",
    "FinishWorld",
    "Instruction",
    "LeaveWorld",
    "NextCase",
    "RankMessage",
    "RankReport",
    "Ready",
    "ReportedKind",
    "Warned",
]

# A report with two texts of the largest size fits (`dist_testing.error_text.MAX_TEXT_CHARS`); a rank that sends
# anything larger does not fill the runner's memory.
MAX_FRAME_BYTES = 8 * 1024 * 1024

ReportedKind: TypeAlias = Literal[Kind.PASSED, Kind.SKIPPED, Kind.RAISED, Kind.EXITED, Kind.NEVER_STARTED]


@dataclass(frozen=True, slots=True)
class RankReport(ReportDetails):
    """How a rank's part in a case went, as the rank itself tells it.

    `ReportDetails` declares the other fields: they are the same in `dist_testing.outcomes.RankOutcome`.

    Attributes:
        kind: What happened.
        phase: What the rank was doing.

    Raises:
        ValueError: If the rank exited without an exit code, or has one without an exit.
    """

    kind: ReportedKind
    phase: str

    def __post_init__(self) -> None:
        if (self.kind is Kind.EXITED) != (self.exit_code is not None):
            raise ValueError(f"kind {self.kind.value!r} with exit_code {self.exit_code!r}")


@dataclass(frozen=True, slots=True)
class Ready:
    """The rank exists; its time counts from now on."""


@dataclass(frozen=True, slots=True)
class Warned:
    """Test code has warned of something.

    Attributes:
        category: Name of the warning's class.
        text: What it says.
        filename: The file that it points to.
        line_number: The line in that file.
    """

    category: str
    text: str
    filename: str
    line_number: int


@dataclass(frozen=True, slots=True)
class EndSession:
    """Test code wants no further test to run.

    Attributes:
        reason: Why.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """The rank has nothing more to say."""


@dataclass(frozen=True, slots=True)
class NextCase:
    """Run another case.

    Attributes:
        body: What to run.
    """

    body: CaseBody


@dataclass(frozen=True, slots=True)
class FinishWorld:
    """Destroy the groups, then say `Done`: no case comes any more."""


@dataclass(frozen=True, slots=True)
class LeaveWorld:
    """End: every rank has said `Done`, so that the store is of no use any more."""


RankMessage: TypeAlias = Ready | RankReport | Warned | EndSession | Done
RANK_MESSAGES: Family[RankMessage] = Family(
    "message of a rank",
    2,
    (Ready, RankReport, Warned, EndSession, Done),
    max_bytes=MAX_FRAME_BYTES,
    error=FrameError,
)

Instruction: TypeAlias = NextCase | FinishWorld | LeaveWorld
INSTRUCTIONS: Family[Instruction] = Family("instruction to a rank", 1, (NextCase, FinishWorld, LeaveWorld))
