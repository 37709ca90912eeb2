"""Worlds side by side: how many."""

from __future__ import annotations

import pytest

from dist_testing.core.ground.backends import default_backend
from dist_testing.core.ground.spec import Spec
from dist_testing.jobs import count
from dist_testing.jobs.count import AUTO, affordable_jobs

_SPEC = Spec("", default_backend(), (2,), "fork")


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight CPUs, and memory for everything."""
    monkeypatch.setattr(count, "cpu_count", lambda: 8)
    monkeypatch.setattr(count, "free_bytes", lambda: 1 << 40)


@pytest.mark.parametrize(
    ("asked", "sizes", "jobs"),
    [(4, [2] * 9, 4), (4, [2] * 3, 3), (AUTO, [2, 4, 4], 2), (AUTO, [16] * 9, 1), (AUTO, [1], 1), (64, [8] * 64, 64)],
)
def test_as_many_worlds_as_asked_or_as_cpus_allow(asked: int, sizes: list[int], jobs: int) -> None:
    """CPUs limit only `auto`: a user who gives a number may know that the cases wait."""
    assert affordable_jobs(asked, _SPEC, sizes, fresh=False) == (jobs, "")


def test_memory_limits_the_number_and_the_log_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh interpreter per rank takes more, so fewer worlds fit; one always runs."""
    monkeypatch.setattr(count, "free_bytes", lambda: 500 << 20)
    assert affordable_jobs(8, _SPEC, [2] * 9, fresh=False) == (
        5,
        "500 MiB of memory are free, and a world of 2 ranks takes 100",
    )
    assert affordable_jobs(8, _SPEC, [2] * 9, fresh=True)[0] == 1
    assert affordable_jobs(8, _SPEC, [64] * 9, fresh=False)[0] == 1
    assert affordable_jobs(AUTO, _SPEC, [1] * 9, fresh=False) == (6, "")
