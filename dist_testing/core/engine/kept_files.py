"""Keeps what a log has no room for: the whole report of a failed case, and the output of its ranks."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from dist_testing.core.engine.rank_logs import open_regular
from dist_testing.core.ground.case import CaseResult

# File systems allow 255 bytes.
_MAX_NAME_CHARS = 120
# Of the files here; the folder may have others.
_NAME = re.compile(r".*\.[0-9a-f]{8}\.(report\.txt|rank-\d+\.log)")
# Limits of one file. A report with more is cut at the end; of a longer log the beginning and the end are kept. Bytes.
_MAX_REPORT_BYTES = 64 << 20
_MAX_LOG_BYTES = 1 << 20
# Limits of the folder: files, and their bytes. The oldest are removed.
_MAX_FILES = 1000
_MAX_FOLDER_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class ReportFolder:
    """Where whole reports go.

    Attributes:
        find: Returns the folder, and makes it if it does not exist; called for the first report.
        where: Where the user finds the folder after the run; "" if it stays where it is.
    """

    find: Callable[[], Path] = lambda: _private_folder()
    where: str = ""

    def keep(self, result: CaseResult, report: str) -> str:
        """Keep the whole report of a case, and return a sentence that says where it is."""
        try:
            path = keep_report(result, report, self.find())
        except OSError as error:
            # The report in the log stays true.
            return f"The whole report could not be kept: {error}."
        return f"The whole report: {path.name} {self.where}" if self.where else f"The whole report: {path}"


def keep_report(result: CaseResult, report: str, folder: Path) -> Path:
    """Write a report to a file of the case, and after it the texts that were too long for a message.

    The file replaces that of an earlier run. The folder of the result's world still exists.
    """
    with _new_file(result, "report.txt", folder) as file:
        file.write(report.encode(errors="backslashreplace")[:_MAX_REPORT_BYTES])
        # The ranks limit these files themselves.
        for rank, texts in result.text_files.items():
            file.write(f"\n\n{'=' * 100}\nwhole texts of rank {rank}:\n".encode())
            with contextlib.suppress(OSError), open_regular(texts) as source:
                shutil.copyfileobj(source, file)
    _remove_oldest(folder)
    return Path(file.name)


def keep_logs(result: CaseResult, folder: Path) -> None:
    """Copy the logs of a failed case. The report quotes the important lines, so these copies are never the only ones.

    The folder has no subfolders: Bazel 8.0 fails on nested ones.
    """
    try:
        for rank, log in result.log_files.items():
            content = b""
            # The rank may have written nothing, or a test has replaced its log.
            with contextlib.suppress(OSError):
                content = _head_and_tail(log)
            if content:
                with _new_file(result, f"rank-{rank}.log", folder) as file:
                    file.write(content)
        _remove_oldest(folder)
    except OSError as error:
        # The verdict does not depend on it.
        print(f"WARNING: {folder}: the logs of {result.case.name} cannot be kept: {error}")


def _new_file(result: CaseResult, what: str, folder: Path) -> BinaryIO:
    name = re.sub(r"[^A-Za-z0-9_.=-]+", "-", result.case.name).strip("-")[-_MAX_NAME_CHARS:]
    # Names that differ only in replaced characters are equal here.
    mark = hashlib.sha256(result.case.name.encode(errors="backslashreplace")).hexdigest()[:8]
    path = folder / f"{name}.{mark}.{what}"
    # Never through a link that another user could have put there.
    path.unlink(missing_ok=True)
    return path.open("xb")


def _head_and_tail(path: Path) -> bytes:
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= _MAX_LOG_BYTES:
            return file.read()
        head = file.read(_MAX_LOG_BYTES // 2)
        file.seek(-_MAX_LOG_BYTES // 2, os.SEEK_END)
        left_out = size - _MAX_LOG_BYTES
        return head + f"\n... {left_out} bytes left out ...\n".encode() + file.read()


def _private_folder() -> Path:
    """Return a folder below the folder for temporary files. Raise OSError if not only this user could read it."""
    folder = Path(tempfile.gettempdir()) / f"dist_testing-reports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder of this user alone")
    return folder


def _remove_oldest(folder: Path) -> None:
    kept = []
    for path in folder.iterdir():
        # Another run may remove it at the same time.
        with contextlib.suppress(OSError):
            status = path.stat()
            if _NAME.fullmatch(path.name):
                kept.append((status.st_mtime_ns, status.st_size, path))
    used = 0
    for count, (_, size, path) in enumerate(sorted(kept, reverse=True), start=1):
        used += size
        if count > _MAX_FILES or (used > _MAX_FOLDER_BYTES and count > 1):
            path.unlink(missing_ok=True)
