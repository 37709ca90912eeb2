"""A session that pytest's plugin would open: it offers one before it imports what a session needs.

The plugin imports this module in every session, so it imports nothing that takes time.
"""

from __future__ import annotations

from collections.abc import Callable

_offered: list[Callable[[], object]] = []


def offer_session(opener: Callable[[], object]) -> None:
    """Keep the function that opens the session, for a test that uses the library only when it runs."""
    _offered[:] = [opener]


def withdraw_session() -> None:
    """Drop the offer: the session is open, or has ended."""
    _offered.clear()


def open_offered_session() -> None:
    """Open the session if one is offered."""
    if _offered:
        _offered.pop()()
