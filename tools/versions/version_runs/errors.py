"""The exception of this program."""

from __future__ import annotations


class VersionsError(Exception):
    """A failure that the user reads as three lines: what, why, way out.

    Args:
        what: Subject and observed values.
        cause: The likely cause.
        way_out: What the user can do.
    """

    def __init__(self, what: str, cause: str, way_out: str) -> None:
        super().__init__(f"{what}\n  {cause}\n  {way_out}")
