"""Runs other programs within a limit of time."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# Time for a program to end by itself after SIGINT. Pytest writes its result file then. Seconds.
_GRACE_S = 30.0
# Lines of a failed program's output that are shown.
_SHOWN_LINES = 4


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended.

    Attributes:
        status: Its exit status; negative: the number of the signal.
        log: Standard output and standard error together.
        in_time: Whether it ended before its limit.
    """

    status: int
    log: str
    in_time: bool

    @property
    def last_lines(self) -> str:
        """The end of its output, in one line."""
        lines = [line.strip() for line in self.log.splitlines() if line.strip()]
        return " ".join(lines[-_SHOWN_LINES:]) or "(no output)"


def run(
    command: Sequence[str | Path],
    limit_s: float,
    *,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Ended:
    """Run a program to its end, or until its limit.

    At the limit it gets SIGINT, half a minute later its whole process group gets SIGKILL.

    Args:
        command: Program and arguments.
        limit_s: Limit. Seconds.
        environment: Variables to set in addition to the inherited ones.
        cwd: Its working directory; None: the caller's.
    """
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # Pytest's own children are in its group, so that the group's end is theirs.
        start_new_session=True,
    )
    in_time = True
    try:
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            in_time = False
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=_GRACE_S)
            _kill_group(process)
            output, _ = process.communicate()
    finally:
        _kill_group(process)
    return Ended(process.returncode, output.decode(errors="replace"), in_time)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
