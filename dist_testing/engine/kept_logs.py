"""Keeps what is worth keeping of a failed case, where Bazel shows it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dist_testing.case import CaseResult

__all__ = ["keep_logs"]

# Of one rank's log; the beginning and the end are kept. Bytes.
_MAX_LOG_BYTES = 1 << 20
# Of all logs of a run together: Bazel packs the folder, and keeps it for every run. Bytes.
_MAX_TOTAL_BYTES = 64 << 20
# File systems allow 255 bytes.
_MAX_NAME_CHARS = 120
# Says what there was no more room for.
_LEFT_OUT = "logs-left-out.txt"


def keep_logs(result: CaseResult, directory: Path) -> None:
    """Copy the ranks' logs of a failed case into `directory`, all in one level: Bazel 8.0 fails on nested folders.

    The report quotes the lines that matter, so that these are never the only copy of the culprit's words.
    """
    try:
        case = _free_name(re.sub(r"[^A-Za-z0-9_.=-]+", "-", result.case.name).strip("-")[-_MAX_NAME_CHARS:], directory)
        room = _MAX_TOTAL_BYTES - sum(path.stat().st_size for path in directory.iterdir() if path.suffix == ".log")
        for rank, log in result.log_files.items():
            content = _head_and_tail(log) if log.exists() else b""
            room -= len(content)
            if content and room < 0:
                with (directory / _LEFT_OUT).open("a", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(f"{result.case.name}, ranks {rank} and up: {_MAX_TOTAL_BYTES} bytes of logs are here\n")
                return
            if content:
                (directory / f"{case}.rank-{rank}.log").write_bytes(content)
    except OSError as error:
        # The verdict does not depend on it.
        print(f"WARNING: {directory}: the logs of {result.case.name} cannot be kept: {error}")


def _free_name(wanted: str, directory: Path) -> str:
    """`wanted`, or with a number: parameters that differ in their signs only come to the same name."""
    number, name = 1, wanted
    while any(directory.glob(f"{name}.rank-*.log")):
        number += 1
        name = f"{wanted}.{number}"
    return name


def _head_and_tail(path: Path) -> bytes:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _MAX_LOG_BYTES:
            return file.read()
        head = file.read(_MAX_LOG_BYTES // 2)
        file.seek(-_MAX_LOG_BYTES // 2, os.SEEK_END)
        left_out = size - _MAX_LOG_BYTES
        return head + f"\n... {left_out} bytes left out ...\n".encode() + file.read()
