"""The collective ledger of a rank: which collective calls it has begun and ended, and what its main thread waits for.

A rank answers a request for its ledger while its main thread is blocked in native code. The request is one byte; the
answer is one packet: a NUL byte, the request, and the ledger as JSON. Stacks by faulthandler, which is text, come from
the same socket.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from dist_testing.core.ground.codec import Family
from dist_testing.core.process.stacks import ANSWER_MARK as ANSWER_MARK

# One packet of a Unix socket takes some 200 kB by default. Bytes.
MAX_ANSWER_BYTES = 60_000
# Limits that torch gives to groups and stores for which the user has named none: gloo's, NCCL's, a store's.
# Milliseconds.
TORCH_LIMITS_MS = frozenset({1_800_000, 600_000, 300_000})


def limits_of(limit_s: float) -> frozenset[int]:
    """Return how torch can show a limit in seconds that this library has given: it cuts off what is less than 1 ms."""
    limit_ms = math.floor(limit_s * 1000)
    return frozenset({limit_ms, limit_ms + 1})


_Count = Annotated[int, range(1 << 31)]
_Rank = Annotated[int, range(-1, 1 << 20)]
_Number = Annotated[int, range(1 << 62)]


class WaitKind(enum.Enum):
    """What a main thread waits for. Only another rank can end such a wait."""

    COLLECTIVE = "collective"  # one collective of a group: every member must call it
    SOME_COLLECTIVE = "some collective"  # one of the collectives that the rank has begun and not ended
    RECEIVE = "receive"
    SEND = "send"
    MONITORED = "monitored barrier"  # the group's first member waits for all others, and they for it
    MEETING = "meeting"  # other ranks, all of them: a group is being made, or it is the world's own barrier


COLLECTIVE = frozenset({WaitKind.COLLECTIVE, WaitKind.SOME_COLLECTIVE})


@dataclass(frozen=True, slots=True)
class Group:
    """A process group that the rank knows.

    Attributes:
        name: torch's name of it, such as "0" for the default group.
        ranks: Its members, in its order, as ranks of the world.
    """

    name: str
    ranks: tuple[_Rank, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A collective that the rank has begun, as torch's flight recorder tells it.

    Attributes:
        group: Name of the group.
        generation: How many groups of this name the rank had before this one.
        number: Of the call among those of its group, from 1.
        backend: torch's backend that runs it, such as "gloo".
        operation: Such as "all_reduce".
        sizes: Shapes of the inputs, such as "[[10], [2, 3]]".
        dtypes: Types of the inputs, such as "Float".
        is_done: Whether it has ended.
        limit_ms: How long it may take, in milliseconds.
        begun_ns: When it began, in nanoseconds since 1970; 0 if torch does not say.
        ended_ns: When torch saw its end; 0 if it has not ended, or if torch does not say.
        place: File and line of the test that calls it; "" if they are not known.
        details: Its reduction and its root, such as "with SUM to rank 0"; "" if there are none, or not known.
    """

    group: str
    generation: _Count
    number: _Number
    backend: str
    operation: str
    sizes: str
    dtypes: str
    is_done: bool
    limit_ms: _Number
    begun_ns: _Number = 0
    ended_ns: _Number = 0
    place: str = ""
    details: str = ""


@dataclass(frozen=True, slots=True)
class CallsMade:
    """The collective calls of a rank in a case.

    Attributes:
        groups: The groups that exist.
        calls: In the order in which they began.
        is_complete: Whether the recorder is on, and has dropped no call.
    """

    groups: tuple[Group, ...]
    calls: tuple[Call, ...]
    is_complete: bool


@dataclass(frozen=True, slots=True)
class Place:
    """A line that a thread executes.

    Attributes:
        file: Path of its file.
        line: Number of the line, from 1.
        instruction: Offset of the instruction in the function's code.
        is_library: Whether the file is torch's or this library's.
    """

    file: str
    line: _Count
    instruction: _Count
    is_library: bool = False


@dataclass(frozen=True, slots=True)
class Wait:
    """What the main thread waits for.

    Attributes:
        kind: What.
        operation: Name of the function, such as "all_reduce" or "wait".
        group: Name of the group, or of a meeting; "" if there is none or if it is not known.
        peer: For a send or a receive the other rank; -1 for a receive from any rank.
        tag: For a send or a receive.
        limit_ms: How long the wait may take, in milliseconds; 0 if that is not known.
        ranks: For a meeting, the ranks that meet.
        is_presumed: Whether the frames leave a small doubt, so that the rank must be seen in this wait for longer.
    """

    kind: WaitKind
    operation: str
    group: str = ""
    peer: _Rank = -1
    tag: int = 0
    limit_ms: _Number = 0
    ranks: tuple[_Rank, ...] = ()
    is_presumed: bool = False


@dataclass(frozen=True, slots=True)
class Ledger:
    """What a rank knows of its own collectives.

    Attributes:
        is_recording: Whether torch's flight recorder is on, and has not failed.
        is_complete: Whether `calls` and `last` cover all that the rank has done: the recorder has dropped no call.
        groups: The process groups that the rank belongs to, and knows the members of.
        calls: All calls that have not ended, and the last ones that have; in the order in which they began.
        last: Name of a group to the number of the last call that the rank has begun on it.
        waits: What the main thread waits for; empty if it is not known that it waits for another rank.
        places: Where the main thread is, innermost first; the outermost are left out.
        others: What else on this rank runs the user's code, or could: other threads, child processes, RPC. Empty for
            nothing.
        device_calls: The same as `calls`, of backends that run calls on a device, such as NCCL. The main thread does
            not wait for them, so they prove nothing.
    """

    is_recording: bool
    is_complete: bool
    groups: tuple[Group, ...]
    calls: tuple[Call, ...]
    last: dict[str, int]
    waits: tuple[Wait, ...]
    places: tuple[Place, ...]
    others: tuple[str, ...]
    device_calls: tuple[Call, ...] = ()

    @property
    def wait(self) -> Wait | None:
        """What the main thread waits for; None if that is not known."""
        return self.waits[0] if self.waits else None

    def members(self, group: str) -> tuple[int, ...] | None:
        """The ranks of a group; None if this rank does not know it."""
        return next((known.ranks for known in self.groups if known.name == group), None)


@dataclass(frozen=True, slots=True)
class NoLedger:
    """The rank cannot tell its ledger.

    Attributes:
        reason: Why.
    """

    reason: str


LedgerAnswer: TypeAlias = Ledger | NoLedger | CallsMade
LEDGERS: Family[LedgerAnswer] = Family("ledger of a rank", 7, (Ledger, NoLedger, CallsMade), max_bytes=MAX_ANSWER_BYTES)
# A request with this bit is for all calls of the rank, and not for its ledger.
FOR_CALLS = 1 << 7
