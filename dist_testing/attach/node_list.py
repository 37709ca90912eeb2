"""Reads Slurm's lists of nodes, which are compressed: `n[01-03,07],gpu5`."""

from __future__ import annotations

import re

from dist_testing.core.ground.errors import UsageError

# The longest prefix without a comma outside brackets. Brackets do not nest.
_FIRST = re.compile(r"(?:[^][,]|\[[^][]*\])+")
_RANGE = re.compile(r"\[(\d+)(?:-(\d+))?(?:,\d+(?:-\d+)?)*\]")
_HOST = re.compile(r"[A-Za-z0-9_.-]+")


def first_host(name: str, text: str) -> str:
    """Return the first host of a list.

    Args:
        name: The variable that holds it, for the error.
        text: The list, such as "n[1-2,5]".

    Raises:
        UsageError: If it cannot be read.
    """
    first = _FIRST.match(text)
    # Several pairs of brackets, as in "rack[0-1]n[1-4]": the first of each.
    host = _RANGE.sub(lambda found: found[1], first[0]) if first else ""
    rest = text[first.end() :] if first else text
    if not _HOST.fullmatch(host) or (rest and not rest.startswith(",")):
        raise UsageError(
            f"{name}={text!r}: cannot be read as a list of nodes.\n"
            "Rank 0 is on the first node of the list; expected a list such as n[1-2,5].\n"
            "Set MASTER_ADDR to the host of rank 0, and MASTER_PORT to a free port there."
        )
    return host
