"""The exceptions of the library, and the texts of errors."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dist_testing.core.ground import errors
from dist_testing.core.ground.case import CaseFailedError
from dist_testing.core.ground.error_text import MAX_TEXT_CHARS, shorten
from dist_testing.core.ground.errors import CollectiveError, DistTestingError, InterruptedRunError
from dist_testing.core.process.refusal import refusal

# Other code handles these: unittest and pytest a failure or an interruption, test code the errors of a group.
_FOR_OTHERS = (CaseFailedError, CollectiveError, InterruptedRunError)
_OWN = [value for value in vars(errors).values() if isinstance(value, type) and not issubclass(value, _FOR_OTHERS)]


def test_every_error_has_the_common_base() -> None:
    """If this fails, a user sees a traceback: the front ends print only the base class without one."""
    assert len(_OWN) > 8
    assert all(issubclass(error, DistTestingError) for error in _OWN)
    # `except Exception` in test code must not swallow SIGTERM.
    assert issubclass(InterruptedRunError, KeyboardInterrupt)
    assert not issubclass(InterruptedRunError, Exception)
    assert str(DistTestingError("one\ntwo")) == "one\ntwo"


@pytest.mark.parametrize(("limit", "left_out"), [(10, 90), (11, 90), (50, 50)])
def test_a_long_text_keeps_its_ends_and_says_what_went(limit: int, left_out: int) -> None:
    """The head says where, the tail says what. A text up to the limit stays as it is."""
    text = "".join(chr(0x100 + position) for position in range(100))
    short = shorten(text, limit)
    half = limit // 2
    assert short.startswith(text[:half] + "\n")
    assert short.endswith("\n" + text[-half:])
    assert f"{left_out} characters left out" in short
    assert shorten(text, 100) == text
    assert shorten("x" * MAX_TEXT_CHARS) == "x" * MAX_TEXT_CHARS


@pytest.mark.parametrize(
    ("number", "cause"),
    [
        ("EACCES", "cannot be written"),
        ("EAGAIN", "no room for another process"),
        ("EDQUOT", "The disk"),
        ("EMFILE", "limit of open files"),
        ("ENFILE", "All processes of the machine"),
        ("ENOENT", "was removed"),
        ("ENOMEM", "no room for another process"),
        ("ENOSPC", "The disk"),
        ("EROFS", "cannot be written"),
        ("ETOOMANYREFS", "sending each other more open files"),
        ("EXDEV", "refuses something that every run needs"),
    ],
)
def test_the_cause_matches_what_the_system_refuses(number: str, cause: str) -> None:
    """If this fails, a user frees an empty disk, because the text names the wrong cause."""
    code = getattr(errno, number)
    first, second, third = refusal(OSError(code, os.strerror(code), "/some/folder")).splitlines()
    assert first == f"[Errno {code}] {os.strerror(code)}: '/some/folder'."
    assert cause in second
    assert third


def test_a_current_directory_that_was_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, the error names no folder, and the user does not find the test that removed it."""
    folder = tmp_path / "of a test"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(FileNotFoundError) as caught:
        os.getcwd()
    assert f"The current directory, {folder}, has been removed." in refusal(caught.value)
    assert "The current directory" not in refusal(OSError(errno.ENOSPC, "full"))
