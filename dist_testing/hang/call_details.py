"""Notes what torch's flight recorder does not tell of a collective: the line of the test, the root, the reduction.

It also sees sends and receives, of which the recorder tells nothing on CPUs, and waits of handles, which leave no frame
of Python otherwise.

torch decorates its collectives by a function that logs their errors, and that function finds the collective in a cell
of its closure. A function of ours in the cell sees each call, also through names that test code has imported before. It
costs 1 us; a collective of four ranks on one machine takes at least 60 us. Where torch changes the decorator, calls
have no such details.
"""

from __future__ import annotations

import bisect
import collections
import functools
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import time_ns
from types import CodeType, FrameType, ModuleType
from typing import Any

from dist_testing.hang.waits import C10D

_COLLECTIVES = (
    "broadcast",
    "all_reduce",
    "reduce",
    "all_gather",
    "all_gather_single",
    "all_gather_into_tensor",
    "gather",
    "scatter",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "all_to_all_single",
    "all_to_all",
    "barrier",
    "send",
    "recv",
)
# Of a process, as many as torch's recorder keeps. One call of torch can consist of several.
_KEPT = 512
_MOST_WITHIN = 8
# torch's names of a reduction and of a root: a rank of the world, or one of the group.
_REDUCTION = "op"
_ROOTS = {"src": "from", "dst": "to"}
_VALUES = (_REDUCTION, *_ROOTS, *(f"group_{name}" for name in _ROOTS))
# torch's default.
_SUM = "RedOpType.SUM"
_NAMED_REDUCTION = re.compile(r"\w+\.(\w+)")
# Files with the function that stands before a deprecated one of torch. Python has its own from 3.13 on. And this
# file: torch 2.15 marks them in another way, so they are noted, too, and call others that are noted.
_MARKS = ("/typing_extensions.py", "/warnings.py", "/_py_warnings.py", "/dist_testing/hang/call_details.py")
# The name of the variable that the cell belongs to.
_CELL = "func"


@dataclass(slots=True)
class _Note:
    """A call of a collective, which holds nothing of the test alive."""

    begun_ns: int  # when it began, in nanoseconds since 1970
    code: CodeType  # the innermost function that is not torch's; with `instruction`, the place in it
    instruction: int
    takes: Mapping[str, int]  # those of `_VALUES` that the collective takes
    values: Mapping[str, Any]  # what the caller has given for them
    ended_ns: int = 0  # when it returned; 0 before that


_notes: collections.deque[_Note] = collections.deque(maxlen=_KEPT)
# Called before each call, with its name and the innermost frame that is not torch's.
before_calls: list[Callable[[str, FrameType], None]] = []


def watch_calls() -> None:
    """Note the collectives that this process calls from now on, if torch's module is loaded."""
    if (c10d := sys.modules.get(C10D)) is not None:
        _watch(c10d)


@functools.cache
def _watch(c10d: ModuleType) -> None:
    """Once in a process; its forks need nothing more."""
    c10d.Work.wait = _waiting(c10d.Work.wait)
    # torch's own folder.
    folder = str(c10d.__file__).removesuffix(os.path.join("distributed", "distributed_c10d.py"))
    for name in _COLLECTIVES:
        logged: Any = getattr(c10d, name, None)
        # Test code may have replaced it.
        code = getattr(logged, "__code__", None)
        if type(code) is not CodeType or code.co_freevars != (_CELL,):
            continue
        cell = logged.__closure__[0]
        function = cell.cell_contents
        # A deprecated one warns of the line that calls it, which has to stay one of torch. It calls another of these.
        if getattr(function, "__module__", "") == C10D and not hasattr(function, "__deprecated__"):
            names = function.__code__.co_varnames[: function.__code__.co_argcount]
            takes = {value: names.index(value) for value in _VALUES if value in names}
            cell.cell_contents = _noting(function, takes, folder)


def _waiting(native: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wait of a handle that leaves a frame with the handle, because torch's is native code."""

    @functools.wraps(native)
    def wait(work: Any, *limits: Any, **named: Any) -> Any:
        __tracebackhide__ = True
        return native(work, *limits, **named)

    return wait


def _noting(function: Callable[..., Any], takes: Mapping[str, int], folder: str) -> Callable[..., Any]:
    def collective(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and ((file := frame.f_code.co_filename).startswith(folder) or file.endswith(_MARKS)):
            frame = frame.f_back
        if frame is None:
            return function(*args, **kwargs)
        for before in before_calls:
            before(function.__name__, frame)
        values = {}
        for name, position in takes.items():
            if name in kwargs:
                values[name] = kwargs[name]
            elif position < len(args):
                values[name] = args[position]
        note = _Note(time_ns(), frame.f_code, frame.f_lasti, takes, values)
        _notes.append(note)
        try:
            return function(*args, **kwargs)
        finally:
            note.ended_ns = time_ns()

    return collective


def details_of(begun_ns: int, members: Sequence[int] | None) -> tuple[str, str]:
    """Return where the test has called a collective, and its reduction and root in words; "" for what is not known.

    torch has recorded the call at `begun_ns`, in nanoseconds since 1970. `members` are the ranks of its group.
    """
    notes = _notes.copy()
    last = bisect.bisect_right(notes, begun_ns, key=lambda note: note.begun_ns)
    # From the innermost call on: torch's own calls of collectives, within one, may have ended.
    for number in range(last - 1, max(last - _MOST_WITHIN, 0) - 1, -1):
        note = notes[number]
        if note.ended_ns == 0 or note.ended_ns >= begun_ns:
            return place_of(note.code, note.instruction), _in_words(note, members)
    return "", ""


def place_of(code: CodeType, instruction: int) -> str:
    """Return file and line of an instruction; "" if the code has no lines."""
    line = next((line for start, end, line in code.co_lines() if start <= instruction < end), None)
    return f"{os.path.basename(code.co_filename)}:{line}" if line is not None else ""


def _in_words(note: _Note, members: Sequence[int] | None) -> str:
    """Return such as "with MAX", or "with SUM to rank 0"."""
    words = []
    if _REDUCTION in note.takes and (named := _NAMED_REDUCTION.fullmatch(str(note.values.get(_REDUCTION, _SUM)))):
        words.append(f"with {named[1]}")
    for name, preposition in _ROOTS.items():
        if name in note.takes:
            root, of_group = note.values.get(name), note.values.get(f"group_{name}")
            if root is None and members is not None:
                # torch's default is the first one.
                root = members[of_group or 0]
            if isinstance(root, int):
                words.append(f"{preposition} rank {root}")
    return " ".join(words)
