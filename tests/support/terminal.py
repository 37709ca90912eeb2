"""A terminal for a process under test, with typed input."""

from __future__ import annotations

import os
import pty
import select
import time
from pathlib import Path

from tests.support.children import write_file
from tests.support.starter import LIMIT_S, Child

_VARIABLE = "TERMINAL_OF_THE_TEST"


class Terminal:
    """Becomes the controlling terminal of a pytest that is started in `folder`. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        """Create the terminal.

        Args:
            folder: Folder of the project; gets a conftest.py.
        """
        # A process that leads its session and has no terminal gets the first that it opens.
        write_file(folder, "conftest.py", f"import os\n\nos.open(os.environ[{_VARIABLE!r}], os.O_RDWR)\n")
        self._ours, self._theirs = pty.openpty()
        self.env = {_VARIABLE: os.ttyname(self._theirs)}
        self.shown = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._theirs)
        os.close(self._ours)

    def wait(self, text: str, child: Child, limit_s: float = LIMIT_S) -> str:
        """Wait until the terminal shows `text`.

        Returns:
            All output since the last call, up to and including `text`.

        Raises:
            AssertionError: If the child ends before that, or the limit is reached.
        """
        deadline = time.monotonic() + limit_s
        poller = select.poll()
        poller.register(self._ours, select.POLLIN)
        pidfd = os.pidfd_open(child.pid)
        poller.register(pidfd, select.POLLIN)
        try:
            while text not in self.shown:
                ready = [fd for fd, _ in poller.poll(1000 * max(0.0, deadline - time.monotonic()))]
                assert self._ours in ready, f"waited for {text!r}, shown: {self.shown!r}; the log:\n{child.log}"
                self.shown += os.read(self._ours, 1 << 16).decode(errors="replace")
        finally:
            os.close(pidfd)
        before, _, self.shown = self.shown.partition(text)
        return before + text

    def type(self, line: str) -> None:
        """Type a line."""
        os.write(self._ours, f"{line}\n".encode())
