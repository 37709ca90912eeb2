"""What the runner's half of the pytest front end sends to its half on the ranks and in fresh interpreters."""

from __future__ import annotations

from dataclasses import dataclass

from dist_testing.codec import Family

__all__ = ["PYTEST_CASES", "PYTEST_SESSIONS", "PytestCase", "PytestSession"]


@dataclass(frozen=True, slots=True)
class PytestCase:
    """A collected item to run; the content of a `CaseBody`.

    Attributes:
        nodeid: Node id of the item.
        next: Node id of the next item, if the ranks outlive this case: so do the fixtures that both share. Else None.
    """

    nodeid: str
    next: str | None = None


@dataclass(frozen=True, slots=True)
class PytestSession:
    """How to collect the tests of the runner's session again; the state of a `Loader`.

    Attributes:
        arguments: The command line of the runner's session.
        directory: The directory in which that session was started.
        spec: The text of the target's spec; None without a target.
        promised_gpus: How many GPUs the configuration says the machine has; None if it says nothing.
    """

    arguments: tuple[str, ...]
    directory: str
    spec: str | None
    promised_gpus: int | None


PYTEST_CASES: Family[PytestCase] = Family("case of the pytest front end", 1, (PytestCase,))
PYTEST_SESSIONS: Family[PytestSession] = Family("session of the pytest front end", 1, (PytestSession,))
