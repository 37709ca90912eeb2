"""The exceptions of dist_testing, except `CaseFailedError`, which carries a result (`core.ground.case`).

Their texts have three parts: the subject with the observed values; the likely cause; the way out.
"""

from __future__ import annotations


class DistTestingError(Exception):
    """Base of the errors that are printed without a traceback, because their text is written for the user."""


class SpecError(DistTestingError):
    """The spec of a target (`DIST_TESTING_SPEC`) is missing, unreadable, of a newer schema, or impossible."""


class ReportError(DistTestingError):
    """A file of results (test.xml, timings) cannot be read, or a report cannot be written."""


class StateLeakError(DistTestingError):
    """A case on a worker pool changed something that the next case would see. Raised on the rank, for that case."""


class UsageError(DistTestingError):
    """A marker, an option or a call asks for something that does not exist or cannot be done."""


class LaunchError(DistTestingError):
    """Ranks could not be started. No test code has run, so the infrastructure failed, not the test."""


class AddOnError(LaunchError):
    """An add-on is missing, does not fit this library, or has raised an exception. The text names it."""


class PromiseError(DistTestingError, AssertionError):
    """Hardware is missing that the run promises or an option requires. unittest counts it as a failure of the test."""


class MessageError(DistTestingError):
    """A message from another process of the run cannot be read, or one cannot be sent. The infrastructure failed."""


class FrameError(MessageError):
    """Bytes that a rank sent are not a message. The rank's outcome is then "report unreadable"."""


class InterruptedRunError(KeyboardInterrupt):
    """A signal told the runner to stop.

    A `KeyboardInterrupt`, because pytest and unittest end a session in an orderly way for that exception.
    """


class CollectiveError(RuntimeError):
    """A call on a group of backend "threaded" cannot complete. Raised on the ranks, and printed with a traceback.

    A `RuntimeError`, because torch's own groups raise that (`torch.distributed.DistBackendError` is one).
    """


class CollectiveMismatchError(CollectiveError):
    """The ranks of a group made calls that do not belong together. Raised on each of these ranks."""


class CollectiveTimeoutError(CollectiveError):
    """A call did not complete within the time limit of the call, of its group, or of the wait."""


class DeadlockError(CollectiveError):
    """Ranks wait for each other, or for a rank that has ended, so that the wait can never complete."""


class PeerFailedError(CollectiveError):
    """A call cannot complete because another rank has failed. The rank that raises this is a victim."""
