"""Calls of ranks, what they wait for, and how such a wait fails."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from dist_testing.errors import CollectiveError

if TYPE_CHECKING:
    from dist_testing.threaded.members import Member

__all__ = ["Call", "Failure", "Operation", "Site", "Wait", "call_site"]

_OWN_FOLDER = str(Path(__file__).parent)
# By code object: whether a frame that runs it is a user's. Code objects live as long as their modules do.
_is_user_code: dict[CodeType, bool] = {}


@dataclass(frozen=True, slots=True)
class Site:
    """A line of the user's code; without a file where there is no Python code of the user's on the stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}" if self.file else "a call from outside of Python"


_NOWHERE = Site("", 0, "")


def call_site(frame: FrameType | None = None) -> Site:
    """Where a call came from: the innermost frame that is not torch's, ours or the standard library's.

    Args:
        frame: From where to look outwards; by default the caller.
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
    # torch's decorators and context managers pass through contextlib and functools.
    library_folder = str(Path(threading.__file__).parent)
    in_library = Path(file).parent == Path(library_folder)
    folders = [_OWN_FOLDER, *([str(Path(torch_file).parent)] if torch_file else [])]
    return not in_library and not file.startswith(("<frozen", "<string>", *(f"{folder}/" for folder in folders)))


class Call:
    """One call of one rank.

    Attributes:
        name: The function of torch.distributed that makes it, such as "all_reduce".
        signature: What has to be the same on all ranks of the group; else their calls do not belong together.
        detail: Gives what a reader is told of it, such as "SUM, float32[4]".
        site: Where it was made.
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
    """Why a wait ends without what was waited for. Every thread that waited raises an exception of its own.

    Attributes:
        kind: The exception.
        text: Its text.
        names_call: Whether the call that waited is to be told beside the text, which does not say it.
    """

    kind: type[CollectiveError]
    text: str
    names_call: bool = False

    def error(self, call: Call) -> CollectiveError:
        """The exception for a call."""
        return self.kind(f"{self.text}\nThis rank's call: {call}." if self.names_call else self.text)


class Operation:
    """What threads can wait for: a collective, a send or a receive.

    Everything in it changes under the lock of its world.

    Attributes:
        is_done: Whether it is over, well or not.
        failure: Why it was not done; None if it was, or is not over.
        waits: The threads that wait for it.
        on_done: Called once, without the lock, when it is over.
    """

    __slots__ = ("failure", "is_done", "on_done", "waits")

    def __init__(self) -> None:
        self.is_done = False
        self.failure: Failure | None = None
        self.waits: list[Wait] = []
        self.on_done: list[Callable[[], None]] = []

    def title(self) -> str:
        """What it is called, such as "collective #3 of the default group"."""
        raise NotImplementedError

    def missing(self) -> str:
        """Whom a wait for it is for, such as "ranks 1 and 3"."""
        raise NotImplementedError


class Wait:
    """One thread that waits.

    Attributes:
        operation: For what.
        call: What it called.
        member: The rank that it is or belongs to; None for a thread that no rank of the world started.
        takes_turns: Whether it is a rank's own thread, which goes on only when it is its turn.
        gate: Locked; released to let the thread go on.
        next: Whom it is to let go on when it does. If all that wait for one operation woke at once, they would fight
            for Python's lock, which only one of them can have.
    """

    __slots__ = ("call", "gate", "member", "next", "operation", "takes_turns")

    def __init__(self, operation: Operation, call: Call, member: Member | None, *, takes_turns: bool) -> None:
        self.operation = operation
        self.call = call
        self.member = member
        self.takes_turns = takes_turns
        self.next: Wait | None = None
        self.gate = threading.Lock()
        self.gate.acquire()
