"""Compares an exception of a rank with `xfail(raises=...)`.

The runner chooses the mark, and the rank has the exception. A name is not enough: two classes can have the same one. So
the rank tells which marks of its own item expect the exception, by their numbers, and the runner looks for its mark.
"""

from __future__ import annotations

from typing import Any

import pytest

from dist_testing.core.ground.outcomes import RankOutcome
from dist_testing.core.pytest.internals import Xfail


def expected_classes(item: pytest.Item) -> list[tuple[type, ...]]:
    """Return what each xfail mark of an item gives as `raises`; empty for a mark without it, or with no classes."""
    found = []
    for raises in _raises(item):
        classes = raises if isinstance(raises, tuple) else (raises,)
        found.append(classes if all(isinstance(cls, type) for cls in classes) else ())
    return found


def is_expected(item: pytest.Item, expected: Xfail, failure: RankOutcome) -> bool:
    """Return whether `expected`, pytest's choice among the marks of the item, expects what a rank has raised."""
    if expected.raises is None:
        return True
    chosen = {number for number, raises in enumerate(_raises(item)) if raises is expected.raises}
    return not chosen.isdisjoint(failure.expected_by)


def _raises(item: pytest.Item) -> list[Any]:
    return [mark.kwargs.get("raises") for mark in item.iter_markers("xfail")]
