"""Explains why the system refuses a process, a file or a folder to a run, and what the user can do."""

from __future__ import annotations

import errno
import os

_DISK = (
    "The disk that the run writes to is full, or this user's quota on it is.",
    "Make room, or point TMPDIR (under Bazel: --test_tmpdir) to another place.",
)
_FOLDER = (
    "A folder that the run needs cannot be written, was removed, or never existed.",
    "Check the path in the error; point TMPDIR (under Bazel: --test_tmpdir) to a folder of this user.",
)
_PROCESSES = (
    "The machine, or the limit for this user, has no room for another process.",
    "Run fewer tests at once, or ask for a smaller world.",
)
_EXPLAINED = {
    errno.ENOSPC: _DISK,
    errno.EDQUOT: _DISK,
    errno.EACCES: _FOLDER,
    errno.ENOENT: _FOLDER,
    errno.ENOTDIR: _FOLDER,
    errno.EROFS: _FOLDER,
    errno.EAGAIN: _PROCESSES,
    errno.ENOMEM: _PROCESSES,
    errno.E2BIG: (
        "The environment is too large for a new program: one variable above 128 KiB, or all of them above the limit.",
        "Unset what the tests do not need; `ulimit -s` raises the limit for all variables together.",
    ),
    errno.EMFILE: (
        "A process of the run has reached its limit of open files. Each rank needs some; those of tests count, too.",
        "Raise the limit with `ulimit -n`, close files in the tests, or ask for a smaller world.",
    ),
    errno.ENFILE: (
        "All processes of the machine together have reached the limit of open files.",
        "Run fewer tests at once, or raise the kernel's limit fs.file-max.",
    ),
    errno.ETOOMANYREFS: (
        "This user's processes are sending each other more open files than one process may have open.",
        "Raise the limit with `ulimit -n`, or run fewer tests at once.",
    ),
}
_UNKNOWN = (
    "The system refuses something that every run needs: processes, open files, a folder, or local sockets.",
    "Check the path or call in the error; a sandbox or a container can be the reason.",
)


def refusal(error: OSError) -> str:
    """Return the error, its cause and the way out. The caller says before it what has failed."""
    if error.errno == errno.ENOENT and (gone := _lost_directory()):
        cause, way_out = (
            f"The current directory, {gone}, has been removed.",
            "A test that changes into a folder has to change back (os.chdir) before it removes the folder.",
        )
    else:
        cause, way_out = _EXPLAINED.get(error.errno or 0, _UNKNOWN)
    return f"{error}.\n{cause}\n{way_out}"


def _lost_directory() -> str:
    """Return the current directory if it has been removed; otherwise ""."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return os.readlink("/proc/self/cwd").removesuffix(" (deleted)")
    return ""
