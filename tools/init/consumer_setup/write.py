"""Writes a set of files: all, or none."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from consumer_setup.problem import SetupError


@dataclass(frozen=True, slots=True)
class Change:
    """A file to write.

    Attributes:
        path: Its place.
        text: Its whole new text.
        said: What the change is, in words.
        verb: "wrote", "added to" or "replaced".
    """

    path: Path
    text: str
    said: str
    verb: str


def write_all(changes: Sequence[Change]) -> None:
    """Write all files. A reader sees the old or the new text of each, and never a part.

    Raises:
        SetupError: If one cannot be written. No file has changed then.
    """
    drafts: list[tuple[Path, Path]] = []
    folders: list[Path] = []
    try:
        for change in changes:
            _make_folder(change.path.parent, folders)
            descriptor, draft = tempfile.mkstemp(prefix=f".{change.path.name}.", dir=change.path.parent)
            drafts.append((Path(draft), change.path))
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
                file.write(change.text)
            if change.path.exists():
                shutil.copymode(change.path, draft)
            else:
                # mkstemp lets only this user read it.
                Path(draft).chmod(0o666 & ~_umask())
    except OSError as error:
        for draft_path, _ in drafts:
            draft_path.unlink(missing_ok=True)
        for folder in reversed(folders):
            with suppress(OSError):
                folder.rmdir()
        raise SetupError(
            f"'{change.path}' cannot be written: {error.strerror}.",
            "The folder is read-only or belongs to another user, or the disk is full. Nothing was changed.",
            "Make it writable, and run this command again.",
        ) from error
    for draft_path, path in drafts:
        draft_path.replace(path)


def _make_folder(folder: Path, made: list[Path]) -> None:
    if not folder.exists():
        _make_folder(folder.parent, made)
        folder.mkdir()
        made.append(folder)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
