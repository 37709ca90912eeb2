"""The output of `status` about jobs; most important: why a job does not run."""

from __future__ import annotations

from typing import Any

import pytest
from local_cluster.status import explain_wait, status_lines

NOW = 1000.0


def worker(name: str, *, ended: str = "", **properties: str) -> dict[str, Any]:
    """A worker as the supervisor describes it."""
    return {
        "name": name,
        "pid": None if ended else 7,
        "since": None if ended else NOW - 5,
        "ended": ended,
        "jobs": 1,
        "present": 2 if "gpus" in properties else None,
        "properties": properties,
        "is_registered": not ended,
    }


def status(**changes: Any) -> dict[str, Any]:
    """The supervisor's answer."""
    part = {"name": "server", "pid": 3, "since": NOW - 60, "ended": ""}
    answer = {
        "name": "local",
        "endpoint": "grpc://127.0.0.1:1",
        "supervisor": 2,
        "logs": "/logs",
        "problem": "",
        "parts": [part],
        "workers": [worker("cpu-1", Pool="cpu")],
        "jobs": [],
        "events": [],
    }
    return {**answer, **changes}


def job(**changes: Any) -> dict[str, Any]:
    """A queued job."""
    default = {"name": "0123456789", "is_running": False, "command": "test.sh", "worker": "", "age_s": 3.2}
    return {**default, "wanted": {"Pool": "cpu"}, "tries": 1, **changes}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"Pool": "gpu4"}, "wants Pool=gpu4, and no worker offers it (offered: Pool=cpu; Pool=gpu2, gpus=2)"),
        ({"Pool": "gpu2", "gpus": "4"}, "wants Pool=gpu2, gpus=4, and no worker offers it"),
        (
            {"Pool": "gpu2"},
            "wants Pool=gpu2, and every worker that offers it is down: gpu2-1 was killed by SIGKILL (9)",
        ),
        ({"Pool": "cpu"}, "waits for a free worker: cpu-1, cpu-2"),
        ({}, "waits for a free worker: cpu-1, cpu-2"),
    ],
)
def test_queued_job_is_explained(wanted: dict[str, str], expected: str) -> None:
    """A job that waits for ever without a reason looks like a slow executor."""
    workers = [
        worker("cpu-1", Pool="cpu"),
        worker("cpu-2", Pool="cpu"),
        worker("gpu2-1", ended="was killed by SIGKILL (9)", Pool="gpu2", gpus="2"),
    ]
    assert explain_wait(wanted, workers).startswith(expected)


def test_running_job_is_shown_with_its_worker_and_attempt() -> None:
    """Otherwise users cannot see that a job went to another worker after a crash."""
    running = job(is_running=True, worker="cpu-2", tries=2)
    assert "  job 01234567, 3 s: runs on cpu-2 (attempt 2): test.sh" in list(status_lines(status(jobs=[running]), NOW))


def test_unknown_jobs_are_not_shown_as_none() -> None:
    """A database that is down must not look like an idle cluster."""
    lines = list(status_lines(status(problem="the database does not answer"), NOW))
    assert "jobs are unknown: the database does not answer" in lines
    assert not [line for line in lines if "queued or running" in line]
