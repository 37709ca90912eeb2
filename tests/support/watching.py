"""A pytest in watch mode, on a terminal of its own."""

from __future__ import annotations

import os
import pty
import select
import signal
import time
from pathlib import Path

from tests.support.children import write_file
from tests.support.starter import LIMIT_S, Child, Starter

_VARIABLE = "TERMINAL_OF_THE_WATCH"
WAITS = "watch: waiting for a save"

# A process that leads its session and has no terminal gets the first that it opens.
_START = f"""
    import os
    import sys

    terminal = os.open(os.environ.pop({_VARIABLE!r}), os.O_RDWR)
    for fd in range(0 if os.environ.pop("HAS_TERMINAL") else 1, 3):
        os.dup2(terminal, fd)
    os.close(terminal)
    sys.stdout = open(1, "w", buffering=1, closefd=False)
    sys.stderr = open(2, "w", buffering=1, closefd=False)

    if sys.argv[1:2] == ["--bazel"]:
        from dist_testing.core.bazel.main import main

        raise SystemExit(main(sys.argv[2:]))
    import pytest

    raise SystemExit(pytest.main(sys.argv[1:]))
"""


class Watch:
    """Starts the watch mode and reads what it shows. Use as a context manager; its end must leave no process."""

    def __init__(
        self,
        starter: Starter,
        folder: Path,
        *options: str,
        has_terminal: bool = True,
        env: dict[str, str | None] | None = None,
    ) -> None:
        """Start it in a project whose files exist already, with additions to the environment.

        `options`: files and options; with `--bazel` first, those of the main program of the rules. `has_terminal`:
        whether the standard input is the terminal.
        """
        if not (folder / "pytest.ini").exists():
            addopts = "-p dist_testing.core.pytest.plugin --color=no -p no:cacheprovider"
            write_file(folder, "pytest.ini", f"[pytest]\naddopts = {addopts}\n")
        (folder / "start").mkdir(exist_ok=True)
        write_file(folder, "start/start.py", _START)
        self._starter = starter
        self._ours, theirs = pty.openpty()
        terminal = os.ttyname(theirs)
        given = {_VARIABLE: terminal, "HAS_TERMINAL": "1" if has_terminal else "", **(env or {})}
        options = (*options, "--dist-watch")
        self.child: Child = starter.start([str(folder / "start/start.py"), *options], folder, env=given)
        self._theirs = theirs
        self.shown = ""

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            os.kill(self.child.pid, signal.SIGTERM)
            self.child.wait()
        self.hang_up()

    def wait(self, text: str = WAITS, limit_s: float = LIMIT_S) -> str:
        """Wait until `text` is shown; return all since the last call, up to and including it."""
        deadline_s = time.monotonic() + limit_s
        pidfd = os.pidfd_open(self.child.pid)
        poller = select.poll()
        poller.register(self._ours, select.POLLIN)
        poller.register(pidfd, select.POLLIN)
        try:
            while text not in self.shown:
                ready = [fd for fd, _ in poller.poll(1000 * max(0.0, deadline_s - time.monotonic()))]
                assert self._ours in ready, f"waited for {text!r}, shown: {self.shown}"
                self.shown += os.read(self._ours, 1 << 16).decode(errors="replace").replace("\r\n", "\n")
        finally:
            os.close(pidfd)
        before, _, self.shown = self.shown.partition(text)
        return before + text

    def type(self, text: str) -> None:
        """Type text."""
        os.write(self._ours, text.encode())

    def hang_up(self) -> None:
        """Close the terminal."""
        for fd in (self._ours, self._theirs):
            if fd >= 0:
                os.close(fd)
        self._ours = self._theirs = -1

    def end(self) -> int:
        """Wait for the end; return the exit code. Nothing may be left."""
        os.close(self._theirs)
        self._theirs = -1
        deadline_s = time.monotonic() + LIMIT_S
        poller = select.poll()
        poller.register(self._ours, select.POLLIN)
        while True:
            # The end of the last process that has the terminal.
            assert poller.poll(1000 * max(0.0, deadline_s - time.monotonic())), self.shown
            try:
                data = os.read(self._ours, 1 << 16)
            except OSError:
                break
            self.shown += data.decode(errors="replace").replace("\r\n", "\n")
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
