"""Reads single keys from the terminal, and lines for those that need one."""

from __future__ import annotations

import contextlib
import os
import sys
import termios
import tty
from collections.abc import Callable
from typing import Any

_STDIN = 0
_BACKSPACE = ("\x7f", "\b")
_ESCAPE = "\x1b"
_END = "\x04"


class Keys:
    """The keyboard of the watch mode.

    Attributes:
        is_on: Whether the standard input is the terminal of this job.
    """

    def __init__(self) -> None:
        self.is_on = os.isatty(_STDIN) and _is_foreground()
        self._before: list[Any] | None = None
        self._prompt = ""
        self._line = ""
        self._done: Callable[[str], None] | None = None

    def start(self) -> None:
        """Let keys come at once and without an echo; also after the job was stopped and continued."""
        if self.is_on and _is_foreground():
            if self._before is None:
                self._before = termios.tcgetattr(_STDIN)
            tty.setcbreak(_STDIN, termios.TCSANOW)

    def stop(self) -> None:
        """Restore the terminal for another reader."""
        if self._before is not None:
            # The terminal may be gone.
            with contextlib.suppress(termios.error):
                termios.tcsetattr(_STDIN, termios.TCSANOW, self._before)
            self._before = None

    def ask(self, prompt: str, done: Callable[[str], None]) -> None:
        """Let the next keys be a line, which `done` gets. Escape leaves it out."""
        self._prompt, self._line, self._done = prompt, "", done
        _show(prompt)

    def read(self) -> list[str]:
        """Return the keys that were pressed outside a line; the end of the input is the key `q`."""
        try:
            data = os.read(_STDIN, 256)
        except OSError:
            data = b""
        keys = []
        for key in data.decode(errors="replace") if data else _END:
            if self._done is not None and key != _END:
                self._edit(key)
            else:
                keys.append("q" if key == _END else key)
        return keys

    def _edit(self, key: str) -> None:
        done = self._done
        assert done is not None
        if key in "\r\n":
            self._done = None
            _show("\n")
            done(self._line.strip())
        elif key == _ESCAPE:
            self._done = None
            _show("\n")
        elif key in _BACKSPACE:
            if self._line:
                self._line = self._line[:-1]
                _show("\b \b")
        elif key.isprintable():
            self._line += key
            _show(key)


def _is_foreground() -> bool:
    try:
        return os.tcgetpgrp(_STDIN) == os.getpgrp()
    except OSError:
        return False


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
