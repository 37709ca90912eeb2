"""Terminals for processes under test, with typed input: of a pytest with a debugger, and of a pytest in watch mode."""

from __future__ import annotations

import os
import pty
import select
import signal
import time
from pathlib import Path
from typing import Self

from tests.support.children import write_file
from tests.support.starter import LIMIT_S, Child, Starter, read_until

_VARIABLE = "TERMINAL_OF_THE_TEST"
WAITS = "watch: waiting for a save"

# A process that leads its session and has no terminal gets the first that it opens.
_CONFTEST = f"import os\n\nos.open(os.environ[{_VARIABLE!r}], os.O_RDWR)\n"
_START = f"""
    import os
    import sys

    terminal = os.open(os.environ.pop({_VARIABLE!r}), os.O_RDWR)
    for fd in range(0 if os.environ.pop("HAS_TERMINAL") else 1, 3):
        os.dup2(terminal, fd)
    os.close(terminal)
    sys.stdout = open(1, "w", buffering=1, closefd=False)
    sys.stderr = open(2, "w", buffering=1, closefd=False)
    # As for a script that Python starts.
    sys.path.insert(0, os.path.dirname(__file__))

    if sys.argv[1:2] == ["--bazel"]:
        from dist_testing.core.bazel.main import main

        raise SystemExit(main(sys.argv[2:]))
    import pytest

    raise SystemExit(pytest.main(sys.argv[1:]))
"""
_WATCH_SETTINGS = """
    [pytest]
    addopts = -p dist_testing.core.pytest.plugin --color=no -p no:cacheprovider
"""


class _Pty:
    """A terminal, and what was shown on it since the last wait. Use as a context manager."""

    def __init__(self) -> None:
        self._ours, self._theirs = pty.openpty()
        self.env: dict[str, str | None] = {_VARIABLE: os.ttyname(self._theirs)}
        self.shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()

    def hang_up(self) -> None:
        """Close the terminal."""
        for fd in (self._ours, self._theirs):
            if fd >= 0:
                os.close(fd)
        self._ours = self._theirs = -1

    def type(self, text: str, end: str = "\n") -> None:
        """Type a line."""
        os.write(self._ours, f"{text}{end}".encode())

    def _wait(self, text: str, child: Child, limit_s: float) -> str:
        is_shown = read_until(lambda: text in self.shown, self._read, self._ours, child.pid, limit_s)
        assert is_shown, f"waited for {text!r}, shown: {self.shown}; the log:\n{child.log}"
        before, _, self.shown = self.shown.partition(text)
        return before + text

    def _read(self) -> None:
        self.shown += os.read(self._ours, 1 << 16).decode(errors="replace").replace("\r\n", "\n")


class Terminal(_Pty):
    """Becomes the controlling terminal of a pytest that is started in `folder` with `env`."""

    def __init__(self, folder: Path) -> None:
        """Create the terminal, and a conftest.py in the folder of the project."""
        super().__init__()
        write_file(folder, "conftest.py", _CONFTEST)

    def wait(self, text: str, child: Child, limit_s: float = LIMIT_S) -> str:
        """Wait until the terminal shows `text`; return all since the last call, up to and including it.

        An AssertionError says that the child has ended before, or that the limit is reached.
        """
        return self._wait(text, child, limit_s)


class Watch(_Pty):
    """A pytest in watch mode, on a terminal of its own. Its end must leave no process."""

    def __init__(
        self,
        starter: Starter,
        folder: Path,
        *options: str,
        has_terminal: bool = True,
        env: dict[str, str | None] | None = None,
    ) -> None:
        """Start it in a project whose files exist already.

        `options` are files and options; with `--bazel` first, those of the main program of the rules. `has_terminal`:
        whether the standard input is the terminal. `env` has additions to the environment.
        """
        super().__init__()
        if not (folder / "pytest.ini").exists():
            write_file(folder, "pytest.ini", _WATCH_SETTINGS)
        start = write_file(folder, "start/start.py", _START)
        given = {**self.env, "HAS_TERMINAL": "1" if has_terminal else "", **(env or {})}
        self._starter = starter
        self.child = starter.start([str(start), *options, "--dist-watch"], folder, env=given)

    def __exit__(self, *error: object) -> None:
        if any(error):
            os.kill(self.child.pid, signal.SIGTERM)
            self.child.wait()
        self.hang_up()

    def wait(self, text: str = WAITS) -> str:
        """Wait until `text` is shown; return all since the last call, up to and including it."""
        return self._wait(text, self.child, LIMIT_S)

    def end(self, command: str = "") -> int:
        """Type a command, if there is one, and wait for the end; return the exit code. Nothing may be left."""
        if command:
            self.type(command)
        os.close(self._theirs)
        self._theirs = -1
        deadline_s = time.monotonic() + LIMIT_S
        poller = select.poll()
        poller.register(self._ours, select.POLLIN)
        while True:
            # The end of the last process that has the terminal.
            assert poller.poll(1000 * max(0.0, deadline_s - time.monotonic())), self.shown
            try:
                self._read()
            except OSError:
                break
        code = self.child.wait()
        self._starter.wait_nothing_left(limit_s=15)
        return code


def save(path: Path, old: str, new: str) -> None:
    """Replace a part of a file by renaming a new file, as many editors do."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    other = path.with_name(f".{path.name}.new")
    other.write_text(text.replace(old, new), encoding="utf-8")
    other.replace(path)
