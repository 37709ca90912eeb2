"""Keeps the texts of a rank that are too long for a message."""

from __future__ import annotations

import contextlib
import os

from dist_testing.core.ground.error_text import MAX_TEXT_CHARS, shorten
from dist_testing.core.process.files import text_name

# Limit of the file. Bytes.
_MAX_BYTES = 64 << 20


class LongTexts:
    """Shortens texts for messages, and writes the whole ones to a file."""

    def __init__(self, directory: str, rank: int) -> None:
        """Name the file; the first long text makes it.

        Args:
            directory: The world's folder.
            rank: This rank.
        """
        self._path = os.path.join(directory, text_name(rank))

    def fit(self, text: str) -> str:
        """Return the text, or its head and tail if it is too long for a message; then the file gets the whole text."""
        if len(text) > MAX_TEXT_CHARS:
            # The report has the head and the tail in any case.
            with contextlib.suppress(OSError):
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open(self._path, flags, 0o600)
                with os.fdopen(descriptor, "ab") as file:
                    room = _MAX_BYTES - file.tell()
                    file.write(f"{text}\n\n".encode(errors="backslashreplace")[: max(0, room)])
        return shorten(text)
