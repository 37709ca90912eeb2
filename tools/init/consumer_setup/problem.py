"""What is wrong with a repository, in three parts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One complaint.

    Attributes:
        what: The subject, with what was observed.
        cause: The likely cause.
        way_out: What the user can do.
    """

    what: str
    cause: str
    way_out: str

    @property
    def text(self) -> str:
        """The three parts, one line or more each."""
        return f"{self.what}\n  {self.cause}\n  {self.way_out}"


class SetupError(Exception):
    """The repository cannot be changed or read; nothing was written.

    Args:
        what: The subject, with what was observed.
        cause: The likely cause.
        way_out: What the user can do.
    """

    def __init__(self, what: str, cause: str, way_out: str) -> None:
        super().__init__(what)
        self.problem = Problem(what, cause, way_out)
