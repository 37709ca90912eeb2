"""Reads plain data that somebody has pickled, without unpickling: nothing is imported, nothing is called."""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

__all__ = ["read_plain_pickle"]

# Opcodes whose argument is the value.
_CONSTANTS = (
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
)


def read_plain_pickle(content: bytes) -> Any:
    """The value of a pickle that holds dicts, lists, tuples, numbers and texts, and nothing else.

    Raises:
        ValueError: If it is no pickle, or holds anything else.
    """
    return _Machine().run(content)


class _Machine:
    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        push = self._stack.append
        self._actions: dict[str, Callable[[Any], object]] = {
            "PROTO": lambda _: None,
            "FRAME": lambda _: None,
            "MARK": lambda _: self._marks.append(len(self._stack)),
            "EMPTY_DICT": lambda _: push({}),
            "EMPTY_LIST": lambda _: push([]),
            "EMPTY_TUPLE": lambda _: push(()),
            "NONE": lambda _: push(None),
            "NEWTRUE": lambda _: push(True),
            "NEWFALSE": lambda _: push(False),
            **dict.fromkeys(_CONSTANTS, push),
            **dict.fromkeys(("BINPUT", "LONG_BINPUT"), self._remember),
            **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda at: push(self._memo[at])),
            "MEMOIZE": lambda _: self._remember(len(self._memo)),
            "SETITEM": lambda _: self._fill(self._last(2)),
            "SETITEMS": lambda _: self._fill(self._since_mark()),
            "APPEND": lambda _: self._extend(self._last(1)),
            "APPENDS": lambda _: self._extend(self._since_mark()),
            "TUPLE": lambda _: push(tuple(self._since_mark())),
            "TUPLE1": lambda _: push(tuple(self._last(1))),
            "TUPLE2": lambda _: push(tuple(self._last(2))),
            "TUPLE3": lambda _: push(tuple(self._last(3))),
        }

    def run(self, content: bytes) -> Any:
        try:
            for opcode, argument, _ in pickletools.genops(content):
                if opcode.name == "STOP":
                    (value,) = self._stack
                    return value
                if opcode.name not in self._actions:
                    raise ValueError(f"{opcode.name} is not plain data")
                self._actions[opcode.name](argument)
        except (IndexError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the pickle is broken: {error}") from error
        raise ValueError("the pickle has no end")

    def _remember(self, at: int) -> None:
        self._memo[at] = self._stack[-1]

    def _last(self, count: int) -> list[Any]:
        return self._cut(len(self._stack) - count)

    def _since_mark(self) -> list[Any]:
        return self._cut(self._marks.pop())

    def _cut(self, start: int) -> list[Any]:
        if not 0 <= start <= len(self._stack):
            raise IndexError("it takes more than there is")
        taken = self._stack[start:]
        del self._stack[start:]
        return taken

    def _fill(self, items: list[Any]) -> None:
        self._stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def _extend(self, items: list[Any]) -> None:
        self._stack[-1].extend(items)
