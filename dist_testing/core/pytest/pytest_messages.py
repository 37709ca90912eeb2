"""What the pytest front end sends from the runner to the ranks and to fresh interpreters."""

from __future__ import annotations

from dataclasses import dataclass

from dist_testing.core.ground.codec import Family

# `CaseBody.front_end` of marked tests.
FRONT_END = "pytest"


@dataclass(frozen=True, slots=True)
class PytestCase:
    """A collected item to run; the content of a `CaseBody`.

    Attributes:
        nodeid: Node id of the item.
    """

    nodeid: str


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


PYTEST_CASES: Family[PytestCase] = Family("case of the pytest front end", 2, (PytestCase,))
PYTEST_SESSIONS: Family[PytestSession] = Family("session of the pytest front end", 1, (PytestSession,))
