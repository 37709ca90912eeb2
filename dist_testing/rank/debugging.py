"""The debugger on a rank: one rank can have the terminal, and no other one asks for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from dist_testing.errors import UsageError

__all__ = ["TERMINAL", "debug_by", "set_breakpoint_hook", "take_terminal"]

# The terminal that the run was started from, whatever its output goes to.
TERMINAL = "/dev/tty"

# What a user types before the option that gives a rank the terminal.
_command = ["pytest"]


def debug_by(command: str) -> None:
    """Say what starts this run's tests where there is a terminal; by default it is pytest."""
    _command[:] = [command]


def take_terminal() -> None:
    """Make the terminal this rank's input and output.

    Raises:
        OSError: If there is none.
    """
    terminal = os.open(TERMINAL, os.O_RDWR)
    for fd in range(3):
        os.dup2(terminal, fd)
    os.close(terminal)


def set_breakpoint_hook(rank: int, debug_rank: int | None) -> Callable[[], None]:
    """Decide what `breakpoint()` and `pdb.set_trace()` do on a rank.

    On the rank that is debugged, what they always do. On the others nothing, if there is such a rank: they run on to
    where they wait for it. And if there is none, they fail: a prompt that nobody sees waits for ever.

    Returns:
        Takes it back.
    """
    if rank == debug_rank:
        return lambda: None

    def hook(*_: Any, **__: Any) -> None:
        if debug_rank is None:
            raise UsageError(
                f"breakpoint() on rank {rank}, which has no terminal.\n"
                "The ranks of a world run at the same time, and only one of them can have it.\n"
                f"Say which: {_command[0]} --dist-debug-rank={rank}, on ranks that the library starts."
            )

    # pytest has put its own there; it is loaded by then.
    pdb: Any = sys.modules.get("pdb")
    before = sys.breakpointhook, getattr(pdb, "set_trace", None)
    sys.breakpointhook = hook
    if pdb is not None:
        pdb.set_trace = hook

    def undo() -> None:
        sys.breakpointhook = before[0]
        if pdb is not None:
            pdb.set_trace = before[1]

    return undo
