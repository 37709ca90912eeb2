"""Compares the end of a command with the expected end."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.support.nested_bazel import Done

# Output that a complaint shows. Characters.
SHOWN = 6000

# Bazel's exit status when tests failed.
TESTS_FAILED = 3


def problems(what: str, done: Done, *, status: int, parts: Sequence[str]) -> list[str]:
    """Return the differences between a command's end and the expected end.

    Args:
        what: Name of the command.
        done: The ended command.
        status: Expected exit status.
        parts: Regular expressions; each must match somewhere in the output.

    Returns:
        An empty list, or one text with the end of the output.
    """
    missing = [part for part in parts if re.search(part, done.output, re.MULTILINE) is None]
    if done.status == status and not missing:
        return []
    said = f"exit status {done.status}, expected {status}; not in the output: {missing}"
    return [f"{what}: {said}\n{done.output[-SHOWN:]}"]
