"""Calls of ranks, the collectives, sends and receives that follow from them, and why these fail."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TypeAlias

from dist_testing.core.ground.error_text import ranks_by_text, ranks_text
from dist_testing.core.ground.errors import CollectiveError, CollectiveMismatchError, DeadlockError

if TYPE_CHECKING:
    import torch

    from dist_testing.threaded.data import Share

# The peer of a receive from any rank, until a send has been paired with it.
ANY_RANK = -1


def call_site(frame: FrameType | None = None) -> str:
    """Return the line of the user's code that made a call, such as "test_sum.py:12 in test_sum".

    That is the innermost frame, from `frame` or the caller's on, that belongs neither to torch, nor to this package,
    nor to the standard library.
    """
    frame = frame or sys._getframe(1)
    while frame is not None and not _is_users(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return "a call from outside of Python"
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def sentence(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


@functools.cache
def _is_users(file: str) -> bool:
    torch_file = getattr(sys.modules.get("torch"), "__file__", None) or __file__
    # `hang` stands between a test and torch's collectives.
    folders = (Path(__file__).parent, Path(torch_file).parent, Path(__file__).parents[1] / "hang")
    if file.startswith(("<frozen", "<string>", *(f"{folder}/" for folder in folders))):
        return False
    # torch's decorators and context managers add frames of contextlib and functools, and of what marks deprecated ones.
    return Path(file).parent != Path(threading.__file__).parent and Path(file).name != "typing_extensions.py"


@dataclass(slots=True, eq=False)
class Call:
    """One call of one rank."""

    name: str  # the function of `torch.distributed` that makes it, such as "all_reduce"
    # The values that have to be equal on all ranks of the group; else the calls do not belong together.
    signature: tuple[object, ...]
    detail: Callable[[], str]  # returns the arguments as text for error texts, such as "SUM, float32[4]"
    site: str = field(default_factory=call_site)  # the line of the user's code that made it

    def without_site(self) -> str:
        """Return such as "all_reduce(SUM, float32[4])"."""
        return f"{self.name}({self.detail()})"

    def __str__(self) -> str:
        return f"{self.without_site()} at {self.site}"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an operation ended without success. Each thread that waits for it raises its own exception."""

    kind: type[CollectiveError]
    text: str
    names_call: bool = False  # whether the exception adds the waiting rank's call to the text

    def error(self, call: Call) -> CollectiveError:
        """Return a new exception for the rank that made the call."""
        return self.kind(f"{self.text}\nThis rank's call: {call}." if self.names_call else self.text)


@dataclass(slots=True, eq=False)
class _State:
    """How far an operation is. It changes under the lock of the world."""

    is_done: bool = field(default=False, init=False)  # whether it has ended, with or without success
    # Why it failed; None while it is not done, and after success.
    failure: Failure | None = field(default=None, init=False)
    # Functions to call once, without the lock, when it has ended.
    on_done: list[Callable[[], None]] = field(default_factory=list, init=False)


@dataclass(frozen=True, slots=True)
class GroupLabel:
    """How error texts name a group and its ranks: such as "the default group", and their numbers in that one."""

    title: str
    ranks: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Collective(_State):
    """One collective of a group; all its ranks share the object."""

    label: GroupLabel
    number: int  # how many collectives of the group came before
    signature: tuple[object, ...]  # that of the first call
    # The calls, by rank of the group, of the ranks that have called.
    calls: dict[int, Call] = field(default_factory=dict, init=False)
    # The ranks' shares of the move, by rank of the group, as they arrive.
    shares: dict[int, Share] = field(default_factory=dict, init=False)

    def title(self) -> str:
        """Return its number from 1, as torch's recorder counts, and its group: "collective #3 of the default group"."""
        return f"collective #{self.number + 1} of {self.label.title}"

    def missing(self) -> str:
        """Return the ranks that have not called yet, such as "ranks 1, 3"."""
        return ranks_text(own for rank, own in enumerate(self.label.ranks) if rank not in self.calls)

    def mismatch(self, reason: str) -> Failure:
        """Return the failure of a collective whose calls do not fit together; `reason` says how they differ."""
        # The first line is the headline of a report.
        sides = "; ".join(f"{ranks} {call}" for ranks, call in self._sides(Call.without_site))
        return Failure(
            CollectiveMismatchError,
            f"{sentence(self.title())}: {reason}: {sides}.\n"
            f"{self._calls_text()}\n"
            "Most likely a call depends on the rank, or one rank is a call ahead of the others.\n"
            "Let all ranks of a group make the same collective calls in the same order.",
        )

    def lost(self, rank: int) -> Failure:
        """Return the failure of a collective that one rank of the group will never call."""
        return Failure(
            DeadlockError,
            f"{sentence(self.title())} can never complete: rank {self.label.ranks[rank]} has ended, or has "
            "destroyed the group, without this call.\n"
            f"{self._calls_text()}\n"
            "Most likely that rank makes fewer calls than the others.\n"
            "Let all ranks of a group make the same collective calls in the same order.",
        )

    def _sides(self, text: Callable[[Call], str]) -> list[tuple[str, str]]:
        """Return the ranks of each call in words, and the call."""
        calls = {self.label.ranks[rank]: text(call) for rank, call in sorted(self.calls.items())}
        return [(ranks_text(ranks), call) for call, ranks in ranks_by_text(calls).items()]

    def _calls_text(self) -> str:
        lines = [f"  {ranks}: {call}" for ranks, call in self._sides(str)]
        if len(self.calls) < len(self.label.ranks):
            lines.append(f"  no call yet: {self.missing()}")
        return "\n".join(lines)


@dataclass(slots=True, eq=False)
class Transfer(_State):
    """A send or a receive."""

    label: GroupLabel
    rank: int  # the rank that made the call, by its number in the group
    peer: int  # the other rank; `ANY_RANK` for a receive from any rank until a send has been paired with it
    tag: int
    tensor: torch.Tensor  # the tensor to send, or the output of the receive
    call: Call
    is_send: bool

    def title(self) -> str:
        """Return the group's title."""
        return self.label.title

    def missing(self) -> str:
        """Return the missing counterpart, such as "rank 1 to send"."""
        peer = "any rank" if self.peer == ANY_RANK else f"rank {self.label.ranks[self.peer]}"
        return f"{peer} to {'receive' if self.is_send else 'send'}"

    def meets(self, other: Transfer) -> bool:
        """Return whether one is a send, the other a receive, and they have equal tags and name each other's ranks."""
        return (
            self.is_send != other.is_send
            and self.tag == other.tag
            and self.peer in (other.rank, ANY_RANK)
            and other.peer in (self.rank, ANY_RANK)
        )

    def lost(self) -> Failure:
        """Return the failure of a transfer whose other rank has ended."""
        return Failure(
            DeadlockError,
            f"Rank {self.label.ranks[self.peer]} has ended, or has destroyed {self.title()}; rank "
            f"{self.label.ranks[self.rank]} waits for it in {self.call}.\n"
            f"Most likely that rank makes one {'receive' if self.is_send else 'send'} too few, or uses another tag.\n"
            "Pair each send with a receive of the same tag.",
        )

    def mismatch(self, other: Transfer, reason: str) -> Failure:
        """Return the failure of a send and its receive whose tensors do not fit together; `reason` says why."""
        ranks = self.label.ranks
        return Failure(
            CollectiveMismatchError,
            f"A send and its receive in {self.title()} do not fit together: {reason}.\n"
            f"  rank {ranks[self.rank]}: {self.call}\n"
            f"  rank {ranks[other.rank]}: {other.call}\n"
            "Sends and receives of one tag are paired in the order of the calls; most likely the two ranks disagree "
            "about that order, or about the size.\n"
            "Give both the same number of elements and the same dtype.",
        )


# What threads can wait for.
Operation: TypeAlias = Collective | Transfer
