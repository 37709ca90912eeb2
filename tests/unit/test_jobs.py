"""Worlds side by side: how many."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dist_testing.core.ground.backends import default_backend
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.spec import Spec
from dist_testing.jobs import look_ahead
from dist_testing.jobs.look_ahead import AUTO, affordable_jobs, read_jobs

_SPEC = Spec("", default_backend(), (2,), "fork")


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight CPUs, and memory for everything."""
    monkeypatch.setattr(look_ahead, "cpu_count", lambda: 8)
    monkeypatch.setattr(look_ahead, "free_bytes", lambda: 1 << 40)


@pytest.mark.parametrize(
    ("asked", "sizes", "jobs"),
    [(4, [2] * 9, 4), (4, [2] * 3, 3), (AUTO, [2, 4, 4], 2), (AUTO, [16] * 9, 1), (AUTO, [1], 1), (64, [8] * 64, 64)],
)
def test_as_many_worlds_as_asked_or_as_cpus_allow(asked: int, sizes: list[int], jobs: int) -> None:
    """CPUs limit only `auto`: a user who gives a number may know that the cases wait."""
    assert affordable_jobs(asked, _SPEC, sizes, fresh=False) == (jobs, "")


def test_memory_limits_the_number_and_the_log_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fresh interpreter per rank takes more, so fewer worlds fit; one always runs."""
    monkeypatch.setattr(look_ahead, "free_bytes", lambda: 500 << 20)
    assert affordable_jobs(8, _SPEC, [2] * 9, fresh=False) == (
        5,
        "500 MiB of memory are free, and a world of 2 ranks takes 100",
    )
    assert affordable_jobs(8, _SPEC, [2] * 9, fresh=True)[0] == 1
    assert affordable_jobs(8, _SPEC, [64] * 9, fresh=False)[0] == 1
    assert affordable_jobs(AUTO, _SPEC, [1] * 9, fresh=False) == (6, "")


@pytest.mark.parametrize(
    ("text", "options", "rank", "said"),
    [
        ("0", {}, None, "--dist-jobs=0: expected a number from 1 to 64, or auto."),
        ("65", {}, None, "--dist-jobs=65: expected a number"),
        ("many", {}, None, "--dist-jobs=many: expected a number"),
        ("2", {"numprocesses": 2}, None, "--dist-jobs=2 with -n (pytest-xdist)."),
        ("auto", {"usepdb": True}, None, "--dist-jobs=auto with --pdb."),
        ("2", {"dist_debug_rank": "0", "usepdb": True}, None, "--dist-jobs=2 with --dist-debug-rank."),
        ("2", {}, SimpleNamespace(rank=0, size=1), "--dist-jobs=2 in a process that is rank 0 of 1 (RANK is set)."),
    ],
)
def test_what_cannot_be_done_is_refused(text: str, options: dict[str, Any], rank: Any, said: str) -> None:
    """If this fails, worlds side by side fight for one terminal, or workers of xdist start worlds by the dozen."""
    config: Any = SimpleNamespace(option=SimpleNamespace(**options))
    with pytest.raises(UsageError) as caught:
        read_jobs(text, config, rank)
    assert str(caught.value).startswith(said)
    assert str(caught.value).count("\n") == 2
