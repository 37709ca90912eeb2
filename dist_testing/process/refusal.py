"""Why the system refuses what a run is made of, and what to do about it, in the words of users."""

from __future__ import annotations

import errno
import os

__all__ = ["refusal"]

_DISK = (
    "The disk that the run writes to is full, or this user's share of it.",
    "Make room, or point TMPDIR (under Bazel: --test_tmpdir) to another place.",
)
_FOLDER = (
    "A folder that the run needs cannot be written, was removed, or was never there.",
    "See what the error names; point TMPDIR (under Bazel: --test_tmpdir) to a folder of this user.",
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
        "A process of the run has as many open files as it may. Each rank needs some; those of test files count, too.",
        "Raise the limit with `ulimit -n`, close what the tests keep open, or ask for a smaller world.",
    ),
    errno.ENFILE: (
        "All processes of the machine together have as many open files as there can be.",
        "Run fewer tests at once, or have fs.file-max raised.",
    ),
    errno.ETOOMANYREFS: (
        "This user's processes have more open files on the way to each other than one of them may have open.",
        "Raise the limit with `ulimit -n`, or run fewer tests at once.",
    ),
}
_UNKNOWN = (
    "The system does not allow what every run needs: processes, open files, a folder, and sockets on this machine.",
    "See what the error names; a sandbox or a container can be the reason.",
)


def refusal(error: OSError) -> str:
    """The error, its cause and the way out; what could not be done is to be said before it."""
    if error.errno == errno.ENOENT and (gone := _lost_directory()):
        cause, way_out = (
            f"The current directory, {gone}, has been removed.",
            "Leave it (os.chdir) before it is removed: a test that goes into a folder has to come back.",
        )
    else:
        cause, way_out = _EXPLAINED.get(error.errno or 0, _UNKNOWN)
    return f"{error}.\n{cause}\n{way_out}"


def _lost_directory() -> str:
    """The current directory, if it has been removed; "" if it has not."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return os.readlink("/proc/self/cwd").removesuffix(" (deleted)")
    return ""
