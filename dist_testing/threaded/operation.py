"""Calls of ranks, the operations and waits that follow from them, and the failures that end a wait."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Protocol

from dist_testing.errors import CollectiveError

__all__ = ["Call", "Failure", "Operation", "RankState", "Site", "Wait", "call_site"]

_OWN_FOLDER = str(Path(__file__).parent)
# Whether a code object belongs to the user. Code objects live as long as their modules do.
_is_user_code: dict[CodeType, bool] = {}


@dataclass(frozen=True, slots=True)
class Site:
    """A line of the user's code.

    Attributes:
        file: Path of the source file; "" if no Python code of the user is on the stack.
        line: Line number, from 1; 0 without a file.
        function: Name of the function; "" without a file.
    """

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}" if self.file else "a call from outside of Python"


_NOWHERE = Site("", 0, "")


def call_site(frame: FrameType | None = None) -> Site:
    """Return the line of the user's code that made a call.

    That is the innermost frame that belongs neither to torch, nor to this package, nor to the standard library.

    Args:
        frame: The innermost frame to consider; the caller's by default.
    """
    if frame is None:
        frame = sys._getframe(1)
    while True:
        code = frame.f_code
        is_user_code = _is_user_code.get(code)
        if is_user_code is None:
            is_user_code = _is_user_code.setdefault(code, _is_users(code.co_filename))
        if is_user_code:
            return Site(code.co_filename, frame.f_lineno, code.co_name)
        if frame.f_back is None:
            return _NOWHERE
        frame = frame.f_back


def _is_users(file: str) -> bool:
    torch_file = getattr(sys.modules.get("torch"), "__file__", None)
    # torch's decorators and context managers add frames of contextlib and functools.
    library_folder = str(Path(threading.__file__).parent)
    in_library = Path(file).parent == Path(library_folder)
    folders = [_OWN_FOLDER, *([str(Path(torch_file).parent)] if torch_file else [])]
    return not in_library and not file.startswith(("<frozen", "<string>", *(f"{folder}/" for folder in folders)))


class Call:
    """One call of one rank.

    Attributes:
        name: The function of `torch.distributed` that makes it, such as "all_reduce".
        signature: The values that have to be equal on all ranks of the group; else the calls do not belong together.
        detail: Returns the arguments as text for error texts, such as "SUM, float32[4]".
        site: The line of the user's code that made it.
    """

    __slots__ = ("detail", "name", "signature", "site")

    def __init__(self, name: str, signature: tuple[object, ...], detail: Callable[[], str], site: Site) -> None:
        self.name = name
        self.signature = signature
        self.detail = detail
        self.site = site

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


class Operation:
    """An operation that threads can wait for: a collective, a send or a receive.

    All attributes change under the lock of the world.

    Attributes:
        is_done: Whether it has ended, with or without success.
        failure: Why it failed; None while it is not done, and after success.
        waits: The threads that wait for it.
        on_done: Functions to call once, without the lock, when it has ended.
    """

    __slots__ = ("failure", "is_done", "on_done", "waits")

    def __init__(self) -> None:
        self.is_done = False
        self.failure: Failure | None = None
        self.waits: list[Wait] = []
        self.on_done: list[Callable[[], None]] = []

    def title(self) -> str:
        """Return its name for error texts, such as "collective #3 of the default group"."""
        raise NotImplementedError

    def missing(self) -> str:
        """Return what it still needs, for error texts, such as "ranks 1 and 3"."""
        raise NotImplementedError


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

    __slots__ = ("call", "gate", "member", "next", "operation", "takes_turns")

    def __init__(self, operation: Operation, call: Call, member: RankState | None, *, takes_turns: bool) -> None:
        self.operation = operation
        self.call = call
        self.member = member
        self.takes_turns = takes_turns
        self.next: Wait | None = None
        self.gate = threading.Lock()
        self.gate.acquire()
