"""A rank's standard streams: its own file, or the terminal for a debugger.

Descriptors are redirected, because gloo and c10d write from C++.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any

from dist_testing.core.ground.errors import UsageError

# The terminal that the run was started from, even if its output goes elsewhere.
TERMINAL = "/dev/tty"

# The command that a user types before --dist-debug-rank.
_command = ["pytest"]


def stream_on(fd: int) -> io.TextIOWrapper:
    """Return a text stream that writes to a descriptor at once."""
    # Without buffers, the file has all output of a rank that is killed. A character that the encoding cannot express
    # must not make `print` fail.
    raw = io.FileIO(fd, "wb", closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)


def own_streams() -> None:
    """Replace Python's streams, which may be pytest's own, by new streams on descriptors 0 to 2."""
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "rb", closefd=False)), encoding="utf-8")
    # Libraries that distrust a replaced sys.stdout write to sys.__stdout__.
    sys.stdout = sys.__stdout__ = stream_on(1)  # type: ignore[misc]  # Final in typeshed
    sys.stderr = sys.__stderr__ = stream_on(2)  # type: ignore[misc]


def open_closed_streams() -> None:
    """Open the null device on those of the descriptors 0 to 2 that are closed, as in a daemon.

    Otherwise the next socket would get such a number, and a rank, or C code that prints, would take it for its output.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        # As those that a shell opens.
        os.set_inheritable(fd, True)
    os.close(fd)


def redirect_output(path: str) -> None:
    """Point descriptors 1 and 2 at the file `path`, and descriptor 0 at the null device."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for fd in (log, nothing):
        # `os.open` returns 0 to 2 if the runner was started with closed standard descriptors.
        if fd > 2:
            os.close(fd)


def flush_streams() -> None:
    """Write the output that Python still buffers, because the process ends without doing so."""
    for stream in (sys.stdout, sys.stderr):
        # A test may have closed or replaced the stream.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


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
