"""The exceptions of dist_testing, except `CaseFailedError`, which carries a result (`core.ground.case`).

Their texts have three parts: the subject with the observed values; the likely cause; the way out. The last part ends
with the address of the entry of docs/troubleshooting.md that has the words of the error, if there is one.
"""

from __future__ import annotations

import re

# The entries, as the page has them. Their code, without what stands for a value, is what an error contains.
TROUBLES = (
    "`torch cannot be imported: <reason>`",
    "`RANK=<r> is set without <variables>`, or `waiting for rank <r> of <n> at <address>`",
    "`Rank 0 cannot listen at <address>, where the other ranks look for it`",
    "`ranks cannot meet at 127.0.0.1: <reason>`",
    "`no ranks could be started: <reason>`",
    "`cannot be sent to the ranks: <reason>`",
    "`changed and not undone: <what>`",
    "``parametrize sets `world_size` ``, or ``There is a fixture `world_size` that is not the library's``",
    "@pytest.mark.distributed `has two possible meanings.`",
    "`breakpoint() on rank <r>, which has no terminal`, or `runs on ranks, and a rank has no terminal`",
    "`-n (pytest-xdist) under <launcher>`, or under Bazel",
    "`is not on the rank: setUpClass has made it in the runner`",
    "`not run, because the target's time was over`",
)
_PAGE = "troubleshooting.md#"


class DistTestingError(Exception):
    """Base of the errors that are printed without a traceback, because their text is written for the user."""

    def __str__(self) -> str:
        """Return the text, with the address of the entry about it."""
        text = super().__str__()
        found = [entry for entry in TROUBLES if any(part in text for part in fixed_parts(entry))]
        return f"{text} See {_docs()}/{_PAGE}{anchor(found[0])}" if found and _PAGE not in text else text


def fixed_parts(entry: str) -> list[str]:
    """Return the longest text in each piece of code of an entry that is the same in all errors."""
    code = (text for _, text in re.findall(r"(`+)(.+?)\1", entry))
    return [max(re.split(r"<[^<>]*>|\d+", text), key=len).strip() for text in code]


def anchor(entry: str) -> str:
    """Return the anchor of a heading, as the code host makes it."""
    return re.sub(r"[^\w\- ]", "", entry.lower()).replace(" ", "-")


def _docs() -> str:
    """Return the address of the pages, of an installed package; else their folder in the sources."""
    # Nothing else on a rank needs it.
    from importlib import metadata

    try:
        urls = metadata.metadata("dist_testing").get_all("Project-URL", [])
    except metadata.PackageNotFoundError:
        urls = []
    return next((url.partition(", ")[2] for url in urls if url.startswith("Documentation, ")), "docs")


class SpecError(DistTestingError):
    """The spec of a target (`DIST_TESTING_SPEC`) is missing, unreadable, of a newer schema, or impossible."""


class ReportError(DistTestingError):
    """A file of results (test.xml, timings) cannot be read, or a report cannot be written."""


class StateLeakError(DistTestingError):
    """A case on a worker pool changed something that the next case would see. Raised on the rank, for that case."""


class UsageError(DistTestingError):
    """A marker, an option or a call asks for something that does not exist or cannot be done."""


class OutOfTimeError(UsageError):
    """A case is not run again, because its part of the run's time is over. What its earlier runs have shown stays."""


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
