"""Reads the plan of a run, and writes records for the audit: one JSON line each, appended by one call of `write`."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from typing import Any, NamedTuple

# A failure's text may be large, and the audit looks only for ranks in it.
_MAX_TEXT_CHARS = 100_000


class Plan(NamedTuple):
    """What one run of the command does."""

    cases: list[str] | None = None  # ids of the cases to run, as pytest or unittest name them; None for all
    fault: str | None = None  # name of the fault; None for none
    rank: int = 0  # the rank that gets it
    moment: str = "init"  # when: "init", "collective" or "own"
    hold_s: float = 0.0  # how long a rank hangs at most, in seconds
    collectives: bool = True  # whether to put wrappers around the collective calls of torch.distributed
    harnesses: bool = False  # whether to note which harnesses the tests reach, and the calls that start ranks


class Case(NamedTuple):
    """The case that runs now, and the file of its test; "" if none does."""

    id: str = ""
    file: str = ""


_folder = ""
# The plan of this run.
plan = Plan()
# The process that has told the current case itself, and that case. A forked child has to look at the file again,
# because ranks may be reused for other cases.
_told_by = 0
_told = Case()
# Whether another process has told of that case first.
_is_echo = False


def open_run(folder: str) -> bool:
    """Read the plan of the run; return whether there is one."""
    global _folder, plan
    try:
        with open(os.path.join(folder, "plan.json"), encoding="utf-8") as file:
            plan = Plan(**json.load(file))
    except FileNotFoundError:
        return False
    _folder = folder
    return True


def note(kind: str, **fields: Any) -> None:
    """Append a record. After the end of the audit, when the folder is gone, do nothing."""
    case = current_case()
    line = {"kind": kind, "t": time.monotonic(), "pid": os.getpid(), "ppid": os.getppid(), "case": case.id, **fields}
    data = json.dumps(line).encode() + b"\n"
    try:
        fd = os.open(os.path.join(_folder, "records.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def note_result(case: str, outcome: str, text: str, **more: Any) -> None:
    """Note the result of a case, or of one part of it; `more` is what pytest says of this part."""
    if len(text) > _MAX_TEXT_CHARS:
        text = text[: _MAX_TEXT_CHARS // 2] + "\n...\n" + text[-_MAX_TEXT_CHARS // 2 :]
    note("result", id=case, outcome=outcome, text=text, **more)


def begin_case(case: str, file: str) -> None:
    """Tell all processes of the suite which case runs now; with "" that none does."""
    global _told_by, _told, _is_echo
    if case:
        # A rank that runs the case of its harness as a case of its own. The harness tells when it is over.
        _is_echo = _read_case().id == case
    _told_by, _told = os.getpid(), Case(case, file)
    if case and not _is_echo:
        note("begin")
    if _is_echo:
        return
    path = _case_file()
    own = f"{path}.{os.getpid()}.{threading.get_ident()}"
    try:
        with open(own, "w", encoding="utf-8") as written:
            json.dump([case, file], written)
        os.replace(own, path)
    except OSError:
        # The audit has ended.
        return


def current_case() -> Case:
    """Return the case that runs now."""
    return _told if _told_by == os.getpid() else _read_case()


def _read_case() -> Case:
    try:
        with open(_case_file(), encoding="utf-8") as file:
            return Case(*json.load(file))
    except (OSError, ValueError):
        return Case()


def claim_fault() -> bool:
    """Return whether this process may plant the fault: only the first of all processes may."""
    try:
        os.close(os.open(os.path.join(_folder, "claimed"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        # It stays for the audit, which looks when the first fault has come.
        os.close(os.open(os.path.join(_folder, "planted"), os.O_CREAT | os.O_WRONLY, 0o600))
    except OSError:
        return False
    return True


def release_fault() -> None:
    """Have the fault come again, if it has come."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(_folder, "claimed"))


def _case_file() -> str:
    # Workers of pytest-xdist run cases at the same time, and the processes that they start inherit this variable.
    return os.path.join(_folder, f"case-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}")
