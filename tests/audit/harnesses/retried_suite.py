"""A model of pytest-rerunfailures: a case that fails runs again, and the second try counts."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest
import torch.distributed as dist
from _pytest.runner import runtestprotocol

from tests.audit.harnesses import world_body


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run a case, and report its first failure as pytest-rerunfailures does."""
    for is_last in (False, True):
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        has_failed = any(report.failed for report in reports)
        for report in reports:
            if report.failed and not is_last:
                report.outcome = "rerun"  # type: ignore[assignment]
            item.ihook.pytest_runtest_logreport(report=report)
        if not has_failed:
            break
    return True


def _rank(rank: int, path: str) -> None:
    world_body.join(path, rank, 2)
    dist.barrier()
    world_body.leave()


def test_meets(tmp_path: Any) -> None:
    """All ranks meet."""
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=_rank, args=(rank, str(tmp_path / "f"))) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(30)
    assert not ranks[1].exitcode, "rank 1 has failed"
