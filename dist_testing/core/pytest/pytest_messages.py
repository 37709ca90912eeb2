"""What the pytest front end sends from the runner to fresh interpreters. A rank gets the node id of its item."""

from __future__ import annotations

from dataclasses import dataclass

from dist_testing.core.ground.codec import Family


@dataclass(frozen=True, slots=True)
class PytestSession:
    """How to collect the tests of the runner's session again, by its command line; the state of a `Loader`.

    The session was started in `directory`; `spec` is the text of the target's spec, None without a target.
    """

    arguments: tuple[str, ...]
    directory: str
    spec: str | None


PYTEST_SESSIONS: Family[PytestSession] = Family("session of the pytest front end", 2, (PytestSession,))
