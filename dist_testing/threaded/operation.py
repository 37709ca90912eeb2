"""Calls of ranks, the operations and waits that follow from them, and the failures that end a wait."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Protocol

from dist_testing.core.ground.errors import CollectiveError


def call_site(frame: FrameType | None = None) -> str:
    """Return the line of the user's code that made a call, such as "test_sum.py:12 in test_sum".

    That is the innermost frame, from `frame` or the caller's on, that belongs neither to torch, nor to this package,
    nor to the standard library.
    """
    if frame is None:
        frame = sys._getframe(1)
    while not _is_users(frame.f_code.co_filename):
        if frame.f_back is None:
            return "a call from outside of Python"
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


@functools.cache
def _is_users(file: str) -> bool:
    # torch's decorators and context managers add frames of contextlib and functools.
    if Path(file).parent == Path(threading.__file__).parent:
        return False
    torch_file = getattr(sys.modules.get("torch"), "__file__", None)
    folders = [Path(path).parent for path in (__file__, torch_file) if path]
    return not file.startswith(("<frozen", "<string>", *(f"{folder}/" for folder in folders)))


@dataclass(slots=True, eq=False)
class Call:
    """One call of one rank.

    Attributes:
        name: The function of `torch.distributed` that makes it, such as "all_reduce".
        signature: The values that have to be equal on all ranks of the group; else the calls do not belong together.
        detail: Returns the arguments as text for error texts, such as "SUM, float32[4]".
        site: The line of the user's code that made it.
    """

    name: str
    signature: tuple[object, ...]
    detail: Callable[[], str]
    site: str = field(default_factory=call_site)

    def __str__(self) -> str:
        return f"{self.name}({self.detail()}) at {self.site}"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an operation ended without success. Each thread that waits for it raises its own exception.

    Attributes:
        kind: The type of the exception.
        text: Its text.
        names_call: Whether the exception adds the waiting rank's call to the text.
    """

    kind: type[CollectiveError]
    text: str
    names_call: bool = False

    def error(self, call: Call) -> CollectiveError:
        """Return a new exception for the rank that made the call."""
        return self.kind(f"{self.text}\nThis rank's call: {call}." if self.names_call else self.text)


class RankState(Protocol):
    """What waits and error texts need to know about a rank; `members.Member` is the implementation.

    Attributes:
        rank: Its number in the world, from 0.
        ident: The thread identifier of the rank's own thread; None until that runs.
        has_ended: Whether all threads of the rank have ended.
    """

    rank: int
    ident: int | None
    has_ended: bool


@dataclass(slots=True, eq=False)
class Operation:
    """An operation that threads can wait for: a collective, a send or a receive.

    All attributes change under the lock of the world.

    Attributes:
        is_done: Whether it has ended, with or without success.
        failure: Why it failed; None while it is not done, and after success.
        waits: The threads that wait for it.
        on_done: Functions to call once, without the lock, when it has ended.
    """

    is_done: bool = field(default=False, init=False)
    failure: Failure | None = field(default=None, init=False)
    waits: list[Wait] = field(default_factory=list, init=False)
    on_done: list[Callable[[], None]] = field(default_factory=list, init=False)

    def title(self) -> str:
        """Return its name for error texts, such as "collective #3 of the default group"."""
        raise NotImplementedError

    def missing(self) -> str:
        """Return what it still needs, for error texts, such as "ranks 1, 3"."""
        raise NotImplementedError


def _locked() -> threading.Lock:
    gate = threading.Lock()
    gate.acquire()
    return gate


@dataclass(slots=True, eq=False)
class Wait:
    """One thread that waits for an operation.

    Attributes:
        operation: The operation.
        call: The call that waits.
        member: The rank to which the thread belongs; None for a thread that belongs to no rank of the world.
        takes_turns: Whether it is a rank's own thread, which continues only in its turn if there are turns.
        gate: A locked lock; releasing it lets the thread continue.
        next: The wait whose gate this thread opens when it continues. If all waiting threads woke at once, they would
            compete for Python's global interpreter lock.
    """

    operation: Operation
    call: Call
    member: RankState | None
    takes_turns: bool
    gate: threading.Lock = field(default_factory=_locked, init=False)
    next: Wait | None = field(default=None, init=False)
