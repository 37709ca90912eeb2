"""Decides whether `xfail(raises=...)` expects what ranks have raised.

The runner chooses the mark, and the rank has the exception. A name is not enough: two classes can have the same one. So
the rank tells which marks of its own item expect the exception, by their numbers, and the runner looks for its mark.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dist_testing.core.ground.case import CaseResult
from dist_testing.core.pytest.internals import xfailed_key


def expected_by(item: pytest.Item, error: BaseException) -> tuple[int, ...]:
    """Return the numbers of the xfail marks of an item that expect an exception; call it on the rank that has it."""
    return tuple(number for number, raises in enumerate(_raises(item)) if _expects(raises, error))


def expects(item: pytest.Item, result: CaseResult) -> bool:
    """Return whether the xfail mark that pytest has chosen for the item expects all that has failed on the ranks."""
    mark = item.stash.get(xfailed_key, None)
    if mark is None or mark.raises is None:
        return mark is not None
    chosen = {number for number, raises in enumerate(_raises(item)) if raises is mark.raises}
    return not any(chosen.isdisjoint(failure.expected_by) for failure in result.failures)


def decide_xfail(item: pytest.Item, *, is_expected: bool) -> None:
    """Have pytest take the error of the call as the expected one, or not, in place of its own look at `raises`."""
    if (mark := item.stash.get(xfailed_key, None)) is not None:
        # No error is of one of no classes.
        item.stash[xfailed_key] = dataclasses.replace(mark, raises=None if is_expected else ())


def _raises(item: pytest.Item) -> list[Any]:
    return [mark.kwargs.get("raises") for mark in item.iter_markers("xfail")]


def _expects(raises: Any, error: BaseException) -> bool:
    if isinstance(raises, type | tuple):
        return isinstance(error, raises)
    # `pytest.RaisesExc` and `pytest.RaisesGroup`.
    return hasattr(raises, "matches") and bool(raises.matches(error))
