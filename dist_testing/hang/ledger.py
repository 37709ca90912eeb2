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
# Limits that torch gives to groups and stores for which the user has named none: gloo's, NCCL's, a store's, that of
# the group of a MultiProcContinuousTest. Milliseconds.
TORCH_LIMITS_MS = frozenset({1_800_000, 600_000, 300_000, 120_000})


def limits_of(limit_s: float) -> frozenset[int]:
    """Return how torch can show a limit in seconds that this library has given: it cuts off what is less than 1 ms."""
    limit_ms = math.floor(limit_s * 1000)
    return frozenset({limit_ms, limit_ms + 1})


_Count = Annotated[int, range(1 << 31)]
_Rank = Annotated[int, range(-1, 1 << 20)]
_Number = Annotated[int, range(1 << 62)]
# Process groups whose members a rank knows: torch's name, such as "0" for the default group, to the members, in the
# order of the group, as ranks of the world.
Groups: TypeAlias = dict[str, tuple[_Rank, ...]]


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
class Call:
    """A collective that the rank has begun, as torch's flight recorder tells it."""

    group: str  # name of the group
    generation: _Count  # how many groups of this name the rank had before this one
    number: _Number  # of the call among those of its group, from 1
    backend: str  # torch's backend that runs it, such as "gloo"
    operation: str  # such as "all_reduce"
    sizes: str  # shapes of the inputs, such as "[[10], [2, 3]]"
    dtypes: str  # types of the inputs, such as "Float"
    is_done: bool  # whether it has ended
    limit_ms: _Number  # how long it may take, in milliseconds
    begun_ns: _Number = 0  # when it began, in nanoseconds since 1970; 0 if torch does not say
    ended_ns: _Number = 0  # when torch saw its end; 0 if it has not ended, or if torch does not say
    place: str = ""  # file and line of the test that calls it; "" if they are not known
    details: str = ""  # its reduction and its root, such as "with SUM to rank 0"; "" if there are none, or not known


@dataclass(frozen=True, slots=True)
class CallsMade:
    """The collective calls of a rank in a case."""

    groups: Groups  # that exist
    calls: tuple[Call, ...]  # in the order in which they began
    is_complete: bool  # whether the recorder is on, and has dropped no call


@dataclass(frozen=True, slots=True)
class Wait:
    """What the main thread waits for."""

    kind: WaitKind
    operation: str  # name of the function, such as "all_reduce" or "wait"
    group: str = ""  # name of the group, or of a meeting; "" if there is none or if it is not known
    peer: _Rank = -1  # for a send or a receive the other rank; -1 for a receive from any rank
    tag: int = 0  # for a send or a receive
    limit_ms: _Number = 0  # how long the wait may take, in milliseconds; 0 if that is not known
    ranks: tuple[_Rank, ...] = ()  # for a meeting, the ranks that meet
    # Whether the frames leave a small doubt, so that the rank must be seen in this wait for longer.
    is_presumed: bool = False


@dataclass(frozen=True, slots=True)
class Ledger:
    """What a rank knows of its own collectives."""

    is_recording: bool  # whether torch's flight recorder is on, and has not failed
    is_complete: bool  # whether `calls` and `last` cover all that the rank has done: the recorder has dropped no call
    groups: Groups  # that the rank belongs to
    # All calls that have not ended, and the last ones that have; in the order in which they began.
    calls: tuple[Call, ...]
    last: dict[str, int]  # name of a group to the number of the last call that the rank has begun on it
    waits: tuple[Wait, ...]  # what the main thread waits for; empty if it is not known that it waits for another rank
    place: str  # file and line of the test that the main thread is in; "" if it is in none
    position: _Number  # the frames of the main thread as one number: another one shows that it has gone on
    # What else on this rank runs the user's code, or could: other threads, child processes, RPC. Empty for nothing.
    others: tuple[str, ...]
    # The same as `calls`, of backends that run calls on a device, such as NCCL. The main thread does not wait for them,
    # so they prove nothing.
    device_calls: tuple[Call, ...] = ()

    @property
    def wait(self) -> Wait | None:
        """What the main thread waits for; None if that is not known."""
        return self.waits[0] if self.waits else None


@dataclass(frozen=True, slots=True)
class NoLedger:
    """The rank cannot tell its ledger."""

    reason: str


LedgerAnswer: TypeAlias = Ledger | NoLedger | CallsMade
LEDGERS: Family[LedgerAnswer] = Family("ledger of a rank", 9, (Ledger, NoLedger, CallsMade), max_bytes=MAX_ANSWER_BYTES)
# What a rank tells of its calls by itself, and to which add-on.
CALLS: Family[CallsMade] = Family("calls of a rank", 4, (CallsMade,))
CALLS_ADD_ON = "calls"
# A request with this bit is for all calls of the rank, and not for its ledger.
FOR_CALLS = 1 << 7
