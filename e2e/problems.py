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
    """Return how a command's end differs from the expected one: nothing, or a text with the end of the output.

    Each of `parts` is a regular expression that must match somewhere in the output.
    """
    missing = [part for part in parts if re.search(part, done.output, re.MULTILINE) is None]
    if done.status == status and not missing:
        return []
    said = f"exit status {done.status}, expected {status}; not in the output: {missing}"
    return [f"{what}: {said}\n{done.output[-SHOWN:]}"]
