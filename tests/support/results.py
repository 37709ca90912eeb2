"""Cases, results, refusals and records of calls, for tests that need no more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dist_testing.core.ground.case import Case, CaseBody, CaseResult
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.outcomes import RankOutcome, Verdict, verdict

NAME = "tests/test_a.py::test_b"
# The limit of a group, as torch's flight recorder tells it. Milliseconds.
LIMIT_MS = 12_345


def case_of(world_size: int, *, name: str = NAME, isolation: str = "fork", **more: Any) -> Case:
    """Return a case with a limit of 60 s. `more` are further fields of `Case`."""
    return Case(name, world_size, CaseBody("pytest"), 60.0, isolation, **more)


def result_of(
    outcomes: Sequence[RankOutcome], *, judged: Verdict | None = None, name: str = NAME, **more: Any
) -> CaseResult:
    """Return the result of a case with an outcome for each rank: started at 100.0 s, ended after 2.0 s.

    `judged`: the verdict, if it does not follow from the outcomes and from leaked processes. `more` are further fields.
    """
    judged = judged or verdict(outcomes, leaked=more.get("leaked", ()))
    return CaseResult(case_of(len(outcomes), name=name), judged, tuple(outcomes), 100.0, 2.0, 60.0, **more)


def refusal(call: Callable[[], object], error: type[Exception] = UsageError) -> str:
    """Return the text with which a wrong input is refused: a subject, a cause and a way out, a line each."""
    with pytest.raises(error) as caught:
        call()
    text = str(caught.value)
    assert len(text.splitlines()) == 3, text
    return text


def entry(number: int, **more: object) -> dict[str, object]:
    """A call of gloo that has ended, as torch's flight recorder tells it."""
    return {
        "collective_seq_id": number,
        "input_dtypes": ["Float"],
        "input_sizes": [[3]],
        "is_p2p": False,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "profiling_name": "gloo:all_reduce",
        "record_id": number,
        "retired": True,
        "timeout_ms": LIMIT_MS,
        "time_created_ns": number,
        **more,
    }
