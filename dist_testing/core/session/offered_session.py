"""A session that pytest's plugin would open: it offers one before it imports what a session needs.

The plugin imports this module in every session, so it imports nothing that takes time.
"""

from __future__ import annotations

from collections.abc import Callable

# By the config of pytest: a test may run pytest in its process.
_offered: dict[object, Callable[[], object]] = {}


def offer_session(config: object, opener: Callable[[], object]) -> None:
    """Keep the function that opens the session, for a test that uses the library only when it runs."""
    _offered[config] = opener


def withdraw_session(config: object) -> None:
    """Drop the offer: the session is open, or has ended."""
    _offered.pop(config, None)


def open_offered_session() -> None:
    """Open the session that was offered last, if there is one."""
    if _offered:
        _offered.popitem()[1]()
