"""Waits for what a watch reacts to: saves, keys, signals and messages of other processes."""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import time
from collections.abc import Callable, Iterable
from types import FrameType, TracebackType

from dist_testing.watch.chain import Peer
from dist_testing.watch.files import Files
from dist_testing.watch.keys import Keys

# Seconds between two looks at the files, and until a second look at files that are being written.
_LOOK_S = 0.05
_SETTLE_S = 0.02
# A look at many files may take at most this part of the time.
_LOOK_SHARE = 0.05
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndWatchError(Exception):
    """The watch is over.

    Attributes:
        signal: The signal that ended it; 0 if the user did.
    """

    def __init__(self, number: int = 0) -> None:
        super().__init__(number)
        self.signal = number


class Loop:
    """Serves all connections of the watcher. Use as a context manager.

    Attributes:
        files: The watched files.
        changed: Files whose change is complete, until the watcher takes them.
        pressed: Keys, until the watcher takes them.
        keys: The keyboard.
        is_debugging: Whether a debugger has the terminal: keys and Ctrl-C are its own, and saves wait.
    """

    def __init__(self, files: Files, peers: Callable[[], Iterable[Peer]]) -> None:
        """Make the loop. `peers` returns the processes to listen to."""
        self.files = files
        self.changed: set[str] = set()
        self.pressed: list[str] = []
        self.keys = Keys()
        self.is_debugging = False
        self._peers = peers
        self._changing: set[str] = set()
        self._look_at_s = time.monotonic()
        self._ended_by = 0
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Loop:
        ours, theirs = socket.socketpair()
        for one in (ours, theirs):
            self._undo.enter_context(one)
            one.setblocking(False)
        self._wake = ours
        self._undo.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False))
        for number in _ENDING:
            self._undo.callback(signal.signal, number, signal.signal(number, self._on_end))
        self._undo.callback(signal.signal, signal.SIGCONT, signal.signal(signal.SIGCONT, self._on_continue))
        self._undo.callback(self.keys.stop)
        self.keys.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    def wait(self, condition: Callable[[], bool]) -> None:
        """Serve everything until the condition holds.

        Raises:
            EndWatchError: If a signal ends the watch, or the terminal is gone.
        """
        while not condition():
            self._once()

    def give_terminal(self) -> None:
        """Leave the terminal to a debugger."""
        self.is_debugging = True
        self.keys.stop()

    def take_terminal(self) -> None:
        """Read keys again."""
        if self.is_debugging:
            self.is_debugging = False
            self.keys.start()

    def _once(self) -> None:
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        if self.keys.is_on and not self.is_debugging:
            poller.register(0, select.POLLIN)
        peers = {peer.channel.fileno(): peer for peer in self._peers() if not peer.is_gone}
        for fd in peers:
            poller.register(fd, select.POLLIN)
        for fd, _ in poller.poll(1000 * max(0.0, self._look_at_s - time.monotonic())):
            if fd in peers:
                peers[fd].receive()
            elif fd == 0:
                self.pressed += self.keys.read()
            else:
                self._wake.recv(4096)
        if self._ended_by:
            raise EndWatchError(self._ended_by)
        if time.monotonic() >= self._look_at_s:
            self._look()

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

    def _on_continue(self, *_: object) -> None:
        if not self.is_debugging:
            with contextlib.suppress(OSError):
                self.keys.start()
