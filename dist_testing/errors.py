"""Every exception that dist_testing raises, and nothing else.

Texts have three parts: the subject with the observed values; the likely cause; the way out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dist_testing.runner.case import CaseResult

__all__ = [
    "CaseFailedError",
    "DistTestingError",
    "FrameError",
    "InterruptedRunError",
    "LaunchError",
    "SpecError",
    "StateLeakError",
    "UsageError",
]


class DistTestingError(Exception):
    """Base of all of them. Printed without a traceback: the text is written for the user."""


class CaseFailedError(AssertionError):
    """A case of a unittest class failed on its ranks; the text is the whole report.

    Attributes:
        result: What the engine found.
    """

    def __init__(self, text: str, result: CaseResult) -> None:
        super().__init__(text)
        self.result = result


class SpecError(DistTestingError):
    """The spec file of a target is missing, unreadable, of a newer schema, or says something impossible."""


class StateLeakError(DistTestingError):
    """A case on kept ranks changed something that the next one would see. Raised on the rank, for the case that did."""


class UsageError(DistTestingError):
    """A marker, an option or a call asks for something that does not exist or cannot be done."""


class LaunchError(DistTestingError):
    """Ranks could not be started. No test code has run: the infrastructure failed, not the test."""


class FrameError(DistTestingError):
    """What a rank sent is not a frame. The rank's outcome is then "report unreadable"."""


class InterruptedRunError(KeyboardInterrupt):
    """The runner was told to stop by a signal.

    A `KeyboardInterrupt`, because that is what pytest and unittest end a session for in an orderly way.
    """
