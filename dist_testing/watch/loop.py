"""Waits for what a watch reacts to: saves, commands, signals and the end of a run."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from types import FrameType

from dist_testing.watch.files import Files
from dist_testing.watch.run import Run

# Seconds between two looks at the files, and until a second look at files that are being written.
_LOOK_S = 0.05
_SETTLE_S = 0.02
# A look at many files may take at most this part of the time.
_LOOK_SHARE = 0.05
_STDIN = 0


class EndWatchError(Exception):
    """The watch is over, by a signal; by the user if it is 0."""

    def __init__(self, number: int = 0) -> None:
        super().__init__(number)
        self.signal = number


class Loop:
    """Serves the watcher. Use as a context manager; a run leaves it, too, and has the signal handlers of before."""

    def __init__(self) -> None:
        self.files = Files()
        self.changed: set[str] = set()  # files whose change is complete, until the watcher takes them
        self.commands: list[str] = []  # lines that the user has typed, until the watcher takes them
        self.has_terminal = os.isatty(_STDIN)
        self.run: Run | None = None  # the run to listen to
        self.is_debugging = False  # whether a debugger has the terminal: lines and Ctrl-C are its own, and saves wait
        self._typed = b""
        self._changing: set[str] = set()
        self._look_at_s = time.monotonic()
        self._ended_by = 0

    def __enter__(self) -> Loop:
        ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._old_handlers = {number: signal.signal(number, self._on_end) for number in ending}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)

    def is_disturbed(self) -> bool:
        """Whether there is a save or a command. Those of a debugger's user are not for the watch."""
        return bool(self.changed or self.commands) and not self.is_debugging

    def wait(self, condition: Callable[[], object]) -> None:
        """Serve everything until the condition holds.

        Raises:
            EndWatchError: If a signal ends the watch, or the terminal is gone.
        """
        while not condition():
            self._once()
            if self._ended_by:
                raise EndWatchError(self._ended_by)

    def _once(self) -> None:
        poller = select.poll()
        if self.has_terminal and not self.is_debugging and _is_foreground():
            poller.register(_STDIN, select.POLLIN)
        run = self.run if self.run is not None and self.run.code is None else None
        if run is not None:
            poller.register(run.pidfd, select.POLLIN)
        # A signal does not end this: its handler only notes it. The pause until the next look can be long.
        wait_s = min(_LOOK_S, max(0.0, self._look_at_s - time.monotonic()))
        ready = {fd for fd, _ in poller.poll(1000 * wait_s)}
        if _STDIN in ready:
            self._read_commands()
        if run is not None and run.pidfd in ready:
            run.reap()
        elif run is not None:
            run.read()
            run.kill_late()
        if time.monotonic() >= self._look_at_s:
            self._look()

    def _read_commands(self) -> None:
        try:
            data = os.read(_STDIN, 4096)
        except OSError:
            data = b""
        # The end of the input is the end of the watch.
        *lines, self._typed = (self._typed + (data or b"\nq\n")).split(b"\n")
        self.commands += [line.decode(errors="replace").strip() for line in lines]

    def _look(self) -> None:
        began_s = time.monotonic()
        found = self.files.changed()
        pause_s = max(_LOOK_S, (time.monotonic() - began_s) / _LOOK_SHARE)
        if found:
            # An editor may write it in several steps, or several files.
            self._changing |= found
            pause_s = _SETTLE_S
        elif self._changing:
            self.changed |= self._changing
            self._changing = set()
        self._look_at_s = time.monotonic() + pause_s

    def _on_end(self, number: int, _: FrameType | None) -> None:
        if not (self.is_debugging and number == signal.SIGINT):
            self._ended_by = number


def _is_foreground() -> bool:
    """Return whether this job may read the terminal; the kernel stops a job in the background that reads it."""
    try:
        return os.tcgetpgrp(_STDIN) == os.getpgrp()
    except OSError:
        # The terminal is gone, and reading tells.
        return True
