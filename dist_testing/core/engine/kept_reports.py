"""Writes whole reports to files, where a log quotes only a part of a text."""

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

from dist_testing.core.engine.rank_logs import open_regular
from dist_testing.core.ground.case import CaseResult

_SUFFIX = ".report.txt"
# File systems allow 255 bytes.
_MAX_NAME_CHARS = 120
# Limit of one file. A report with more is cut at the end. Bytes.
_MAX_REPORT_BYTES = 64 << 20
# Limits of the folder: files, and their bytes. The oldest are removed.
_MAX_REPORTS = 100
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
    """Write a report to a file of the case, which replaces that of an earlier run.

    Texts that were too long for a message follow the report.

    Args:
        result: The result of the case. Its folder still exists.
        report: The whole report.
        folder: An existing folder.

    Returns:
        The file.

    Raises:
        OSError: If it cannot be written.
    """
    name = re.sub(r"[^A-Za-z0-9_.=-]+", "-", result.case.name).strip("-")[-_MAX_NAME_CHARS:]
    # Names that differ only in replaced characters are equal here.
    mark = hashlib.sha256(result.case.name.encode(errors="backslashreplace")).hexdigest()[:8]
    path = folder / f"{name}.{mark}{_SUFFIX}"
    # Never through a link that another user could have put there.
    path.unlink(missing_ok=True)
    with path.open("xb") as file:
        file.write(report.encode(errors="backslashreplace")[:_MAX_REPORT_BYTES])
        # The ranks limit these files themselves.
        for rank, texts in result.text_files.items():
            file.write(f"\n\n{'=' * 100}\nwhole texts of rank {rank}:\n".encode())
            with contextlib.suppress(OSError), open_regular(texts) as source:
                shutil.copyfileobj(source, file)
    _remove_oldest(folder)
    return path


def _private_folder() -> Path:
    """Return a folder below the folder for temporary files, which only this user can read.

    Raises:
        OSError: If it cannot be made, or belongs to another user.
    """
    folder = Path(tempfile.gettempdir()) / f"dist_testing-reports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder of this user alone")
    return folder


def _remove_oldest(folder: Path) -> None:
    reports = []
    for path in folder.glob(f"*{_SUFFIX}"):
        # Another run may remove it at the same time.
        with contextlib.suppress(OSError):
            status = path.stat()
            reports.append((status.st_mtime_ns, status.st_size, path))
    used = 0
    for count, (_, size, path) in enumerate(sorted(reports, reverse=True), start=1):
        used += size
        if count > _MAX_REPORTS or (used > _MAX_FOLDER_BYTES and count > 1):
            path.unlink(missing_ok=True)
