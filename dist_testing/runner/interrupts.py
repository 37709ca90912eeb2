"""SIGTERM ends a run as Ctrl-C does: ranks killed, results kept, failures printed."""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn

from dist_testing.errors import InterruptedRunError
from dist_testing.outcomes import exit_name

__all__ = ["ignore_termination", "raise_on_termination"]


def raise_on_termination() -> None:
    """From now on, SIGTERM raises InterruptedRunError in the main thread; unless somebody handles it already."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _interrupt)


def ignore_termination() -> None:
    """From now on, SIGTERM does nothing: all that is left to do is to say how the run went."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _interrupt(number: int, _: FrameType | None) -> NoReturn:
    # Once: a second signal must not break the clean-up that the first began.
    signal.signal(number, signal.SIG_IGN)
    raise InterruptedRunError(f"the runner got {exit_name(-number)}")
