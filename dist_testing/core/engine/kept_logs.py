"""Copies the logs of a failed case to the folder that Bazel keeps."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dist_testing.core.engine.rank_logs import open_regular
from dist_testing.core.ground.case import CaseResult

# Limit of one rank's log. Of a longer log the beginning and the end are kept. Bytes.
_MAX_LOG_BYTES = 1 << 20
# Limit of all logs of a run: Bazel packs the folder, and keeps it for every run. Bytes.
_MAX_TOTAL_BYTES = 64 << 20
# File systems allow 255 bytes.
_MAX_NAME_CHARS = 120
# Lists the logs beyond the limit.
_LEFT_OUT = "logs-left-out.txt"


def keep_logs(result: CaseResult, directory: Path) -> None:
    """Copy the logs of a failed case into `directory`, without subfolders: Bazel 8.0 fails on nested folders.

    The report quotes the important lines, so these copies are never the only ones.
    """
    try:
        case = _free_name(re.sub(r"[^A-Za-z0-9_.=-]+", "-", result.case.name).strip("-")[-_MAX_NAME_CHARS:], directory)
        room = _MAX_TOTAL_BYTES - sum(path.stat().st_size for path in directory.iterdir() if path.suffix == ".log")
        for rank, log in result.log_files.items():
            try:
                content = _head_and_tail(log)
            except OSError:
                # The rank has written nothing, or a test has replaced its log.
                continue
            room -= len(content)
            if content and room < 0:
                with (directory / _LEFT_OUT).open("a", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(f"{result.case.name}, ranks {rank} and up: over {_MAX_TOTAL_BYTES} bytes of logs\n")
                return
            if content:
                (directory / f"{case}.rank-{rank}.log").write_bytes(content)
    except OSError as error:
        # The verdict does not depend on it.
        print(f"WARNING: {directory}: the logs of {result.case.name} cannot be kept: {error}")


def _free_name(wanted: str, directory: Path) -> str:
    """Return `wanted`, with a number if it is taken: names that differ only in replaced characters are equal here."""
    number, name = 1, wanted
    while any(directory.glob(f"{name}.rank-*.log")):
        number += 1
        name = f"{wanted}.{number}"
    return name


def _head_and_tail(path: Path) -> bytes:
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= _MAX_LOG_BYTES:
            return file.read()
        head = file.read(_MAX_LOG_BYTES // 2)
        file.seek(-_MAX_LOG_BYTES // 2, os.SEEK_END)
        left_out = size - _MAX_LOG_BYTES
        return head + f"\n... {left_out} bytes left out ...\n".encode() + file.read()
