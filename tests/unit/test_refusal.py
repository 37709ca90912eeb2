"""The error text when the system refuses a process, a file or a folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dist_testing.core.process.refusal import refusal


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
def test_the_cause_matches_the_error(number: str, cause: str) -> None:
    """If this fails, a user frees an empty disk, because the text names the wrong cause."""
    code = getattr(errno, number)
    text = refusal(OSError(code, os.strerror(code), "/some/folder"))
    first, second, third = text.splitlines()
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
