"""The exceptions of dist_testing, except `CaseFailedError`, which carries a result (`dist_testing.case`).

Texts have three parts: the subject with the observed values; the likely cause; the way out.
"""

from __future__ import annotations

__all__ = [
    "CollectiveError",
    "CollectiveMismatchError",
    "CollectiveTimeoutError",
    "DeadlockError",
    "DistTestingError",
    "FrameError",
    "GpuError",
    "InterruptedRunError",
    "LaunchError",
    "LeaseTimeoutError",
    "PeerFailedError",
    "PromiseError",
    "ReportError",
    "SpecError",
    "StateLeakError",
    "UsageError",
]


class DistTestingError(Exception):
    """Base of all of them. Printed without a traceback: the text is written for the user."""


class SpecError(DistTestingError):
    """The spec of a target (`DIST_TESTING_SPEC`) is missing, unreadable, of a newer schema, or impossible."""


class ReportError(DistTestingError):
    """A file of results (test.xml, timings) cannot be read, or a report cannot be written."""


class StateLeakError(DistTestingError):
    """A case on a worker pool changed something that the next case would see. Raised on the rank, for that case."""


class UsageError(DistTestingError):
    """A marker, an option or a call asks for something that does not exist or cannot be done."""


class LaunchError(DistTestingError):
    """Ranks could not be started. No test code has run: the infrastructure failed, not the test."""


class PromiseError(DistTestingError, AssertionError):
    """Hardware is missing that the run promises or an option requires. unittest counts it as a failure of the test."""


class FrameError(DistTestingError):
    """What a rank sent is not a frame. The rank's outcome is then "report unreadable"."""


class InterruptedRunError(KeyboardInterrupt):
    """The runner was told to stop by a signal.

    A `KeyboardInterrupt`, because that is what pytest and unittest end a session for in an orderly way.
    """


class CollectiveError(RuntimeError):
    """A call on the threaded backend's group cannot be completed. Raised on the ranks, and printed with a traceback.

    A `RuntimeError`, because that is what torch's own groups raise.
    """


class CollectiveMismatchError(CollectiveError):
    """The ranks of a group made calls that do not belong together. Raised on each of them."""


class CollectiveTimeoutError(CollectiveError):
    """A call was not completed within the time limit of its group, or of the wait."""


class DeadlockError(CollectiveError):
    """Ranks wait for what can never happen: for each other in a circle, or for a rank that has ended."""


class PeerFailedError(CollectiveError):
    """A call cannot be completed because another rank has failed. The rank that raises this is a victim."""


class GpuError(LaunchError):
    """GPUs cannot be found, or cannot be had by this process at all. The machine's fault, not the test's."""


class LeaseTimeoutError(GpuError):
    """Others kept the GPUs for longer than the case could wait."""
