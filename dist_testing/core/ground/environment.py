"""Changes environment variables for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables, or remove those with None; afterwards restore all of them."""
    before = {name: os.environ.get(name) for name in changes}
    set_variables(changes)
    try:
        yield
    finally:
        set_variables(before)


def set_variables(changes: Mapping[str, str | None]) -> None:
    """Set variables, or remove those with None."""
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
