"""Gives one rank the terminal for a debugger, and keeps the other ranks from asking for it."""

from __future__ import annotations

import os
import sys
from typing import Any

from dist_testing.core.ground.errors import UsageError

# The terminal that the run was started from, even if its output goes elsewhere.
TERMINAL = "/dev/tty"

# The command that a user types before --dist-debug-rank.
_command = ["pytest"]


def debug_by(command: str) -> None:
    """Set the command that error texts propose to run these tests in a terminal. Default: "pytest"."""
    _command[:] = [command]


def take_terminal() -> None:
    """Make the terminal this rank's input and output. An OSError says that the run has none."""
    terminal = os.open(TERMINAL, os.O_RDWR)
    for fd in range(3):
        os.dup2(terminal, fd)
    os.close(terminal)


def set_breakpoint_hook(rank: int, debug_rank: int | None) -> None:
    """Set what `breakpoint()` and `pdb.set_trace()` do on a rank.

    The debugged rank enters the debugger. The other ranks then ignore the call, and run on until they wait for the
    debugged rank. If no rank is debugged, the call fails, because a prompt without a terminal waits forever.
    """
    if rank == debug_rank:
        return

    def hook(*_: Any, **__: Any) -> None:
        if debug_rank is None:
            raise UsageError(
                f"breakpoint() on rank {rank}, which has no terminal.\n"
                "The ranks of a world run at the same time, and only one of them can have the terminal.\n"
                f"Run the test again with the option, for this rank: {_command[0]} --dist-debug-rank={rank}"
            )

    sys.breakpointhook = hook
    # pytest, which loads pdb, has replaced pdb.set_trace.
    if (pdb := sys.modules.get("pdb")) is not None:
        pdb.set_trace = hook  # type: ignore[attr-defined]
