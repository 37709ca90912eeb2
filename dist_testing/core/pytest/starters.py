"""Finds out whether a plain test may start ranks while it runs."""

from __future__ import annotations

import functools
import re
from pathlib import Path

# The functions of the library that do. `run` alone is a word of every other file.
_STARTERS = re.compile(
    r"spawn_threads_and_init_comms|start_processes|\bdist_testing\.run\(|^\s*from dist_testing import .*\brun\b",
    re.MULTILINE,
)


def starts_ranks(function: object, file: Path) -> bool:
    """Return whether a plain test may start ranks: it says so by `starts_ranks`, or its file names such a function."""
    # A test can also decorate functions while it runs. Only the text of the file shows that before.
    return bool(getattr(function, "starts_ranks", False)) or _names_starter(file)


@functools.lru_cache
def _names_starter(file: Path) -> bool:
    return file.is_file() and _STARTERS.search(file.read_text(encoding="utf-8", errors="replace")) is not None
