"""Texts of exceptions, for messages and reports. They never raise, whatever the exception's own code does."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Hashable, Iterable, Mapping
from typing import TypeVar

from dist_testing.core.ground.errors import DistTestingError

_Text = TypeVar("_Text", bound=Hashable)
# Text of one rank report; the head and the tail are kept. JSON needs up to twelve bytes for a character, so that a
# report of this size always fits into a frame (`core.process.rank_messages.MAX_FRAME_BYTES`).
MAX_TEXT_CHARS = 256 * 1024
# One line of a report; the whole text follows elsewhere.
_SUMMARY_CHARS = 300


def shorten(text: str, limit: int = MAX_TEXT_CHARS) -> str:
    """Return `text`; if it has more than `limit` characters, its head and tail, and how many were left out between."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[len(text) - half :]}"


def ranks_text(ranks: Iterable[int]) -> str:
    """Return ranks as text, in their order, such as "rank 3" or "ranks 0, 1"."""
    texts = [str(rank) for rank in ranks]
    return f"rank{'s' if len(texts) > 1 else ''} {', '.join(texts)}"


def ranks_by_text(texts: Mapping[int, _Text]) -> dict[_Text, list[int]]:
    """Return the ranks of each text, or of texts in a tuple, from those of each rank, in its order."""
    by_text: dict[_Text, list[int]] = {}
    for rank, text in texts.items():
        by_text.setdefault(text, []).append(rank)
    return by_text


def name_of(fn: object) -> str:
    """Return how errors and reports name a function."""
    return f"{fn.__module__}.{fn.__qualname__}" if hasattr(fn, "__qualname__") else repr(fn)


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return "Did you mean 'gloo'?" with the nearest known name; if none is near, `otherwise`."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"Did you mean {near[0]!r}?" if near else otherwise


def message_of(error: BaseException | str) -> str:
    """Return `str(error)`, or a text that says how its `__str__` failed."""
    try:
        return str(error)
    except Exception as broken:
        return f"<__str__ raised {type(broken).__name__}>"


def summarise(error: BaseException) -> str:
    """Return `ValueError: boom`: the class and the first line of the message, in one line of at most 300 characters."""
    text = message_of(error)
    first = text.strip().splitlines()[0] if text.strip() else ""
    line = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return shorten(line, _SUMMARY_CHARS).replace("\n", " ")


def format_error(error: BaseException) -> str:
    """Return the traceback as Python prints it; for an error of this library its text, which stands alone."""
    if isinstance(error, DistTestingError):
        return str(error)
    try:
        return "".join(traceback.format_exception(error))
    except Exception as broken:
        # Formatting runs test code (`__str__`, `__repr__`, notes). A failure there must not hide the first failure.
        frames = "".join(traceback.format_tb(error.__traceback__))
        return f"{frames}{summarise(error)}\n(formatting it raised {type(broken).__name__})\n"
