"""The output of `status`; most important: why a job does not run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Number of events that are shown.
_EVENTS = 10


def explain_wait(wanted: Mapping[str, str], workers: Sequence[Mapping[str, Any]]) -> str:
    """Return why a job does not run that wants these properties; the workers are as the supervisor describes them."""
    fitting = [worker for worker in workers if wanted.items() <= worker["properties"].items()]
    if not fitting:
        offered = "; ".join(dict.fromkeys(_properties(worker["properties"]) for worker in workers))
        return f"wants {_properties(wanted)}, and no worker offers it (offered: {offered})"
    alive = [worker for worker in fitting if worker["pid"] is not None]
    if not alive:
        ends = ", ".join(f"{worker['name']} {worker['ended']}" for worker in fitting)
        return f"wants {_properties(wanted)}, and every worker that offers it is down: {ends}"
    names = ", ".join(worker["name"] for worker in alive)
    return f"waits for a free worker: {names}"


def status_lines(status: Mapping[str, Any], now: float) -> Iterator[str]:
    """Return the supervisor's answer as lines for people; `now` is the wall-clock time in seconds."""
    yield f"cluster {status['name']} at {status['endpoint']} (process {status['supervisor']}, logs in {status['logs']})"
    for part in status["parts"]:
        yield f"  {part['name']:<12} {_state(part, now)}"
    for worker in status["workers"]:
        waiting = "" if worker["is_registered"] or worker["pid"] is None else ", not yet known to the server"
        yield (
            f"  {worker['name']:<12} {_state(worker, now)}{waiting}; {_properties(worker['properties'])}"
            f"; {worker['jobs']} job(s) at once{_gpus(worker)}"
        )
    if status["problem"]:
        yield f"jobs are unknown: {status['problem']}"
    else:
        yield f"{len(status['jobs'])} job(s) queued or running"
    for job in status["jobs"]:
        how = f"runs on {job['worker']}" if job["is_running"] else explain_wait(job["wanted"], status["workers"])
        again = f" (attempt {job['tries']})" if job["tries"] > 1 else ""
        yield f"  job {job['name'][:8]}, {job['age_s']:.0f} s: {how}{again}: {job['command']}"
    if status["events"]:
        yield "what happened:"
    for when, text in status["events"][-_EVENTS:]:
        yield f"  {time.strftime('%H:%M:%S', time.localtime(when))} {text}"


def _state(part: Mapping[str, Any], now: float) -> str:
    if part["pid"] is None:
        return f"DOWN: {part['ended']}"
    return f"up for {now - part['since']:.0f} s (process {part['pid']})"


def _gpus(worker: Mapping[str, Any]) -> str:
    if worker["present"] is None:
        return ""
    return f"; {worker['present']} simulated GPU(s)"


def _properties(properties: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(properties.items())) or "no properties"
