"""Keeps what is worth keeping of a failed case, where Bazel shows it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dist_testing.runner.case import CaseResult

__all__ = ["keep_logs"]

# Of one rank's log; the beginning and the end are kept. Bytes.
_MAX_LOG_BYTES = 1 << 20
# File systems allow 255 bytes.
_MAX_NAME_CHARS = 120


def keep_logs(result: CaseResult, directory: Path) -> None:
    """Copy the ranks' logs of a failed case into `directory`, all in one level: Bazel 8.0 fails on nested folders.

    The report quotes the lines that matter, so that these are never the only copy of the culprit's words.
    """
    case = re.sub(r"[^A-Za-z0-9_.=-]+", "-", result.case.name).strip("-")[-_MAX_NAME_CHARS:]
    for rank, log in result.log_files.items():
        if log.exists() and log.stat().st_size:
            (directory / f"{case}.rank-{rank}.log").write_bytes(_head_and_tail(log))


def _head_and_tail(path: Path) -> bytes:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _MAX_LOG_BYTES:
            return file.read()
        head = file.read(_MAX_LOG_BYTES // 2)
        file.seek(-_MAX_LOG_BYTES // 2, os.SEEK_END)
        left_out = size - _MAX_LOG_BYTES
        return head + f"\n... {left_out} bytes left out ...\n".encode() + file.read()
