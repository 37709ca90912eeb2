"""Tells where the time of remote test actions went besides the tests: uploads, waits for a worker, inputs on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from dist_testing.core.ground.error_text import shorten
from dist_testing.report.markup import Markup, join, table, tag
from dist_testing.report.model import Report, RunRecord
from dist_testing.report.words import plural, seconds

_TARGETS = 20


@dataclass(frozen=True, slots=True)
class RemoteTime:
    """Where the time of the remote actions of a target went, all runs and shards together. Seconds.

    Attributes:
        target: Its label.
        actions: Number of its actions.
        upload_s: Bazel uploaded inputs.
        queue_s: They waited for a worker.
        longest_queue_s: The longest wait for a worker.
        setup_s: Workers fetched inputs.
        run_s: They ran.
    """

    target: str
    actions: int
    upload_s: float
    queue_s: float
    longest_queue_s: float
    setup_s: float
    run_s: float

    @property
    def overhead_s(self) -> float:
        """All but the run itself."""
        return self.upload_s + self.queue_s + self.setup_s


def remote_times(report: Report) -> list[RemoteTime]:
    """Return the times of each target that ran remotely, the largest overhead first."""
    by_target: dict[str, list[RunRecord]] = defaultdict(list)
    for run in report.runs:
        if run.remote_parts and not run.cached:
            by_target[run.target].append(run)
    found = [_time_of(target, runs) for target, runs in by_target.items()]
    return sorted(found, key=lambda one: (-one.overhead_s, one.target))


def _time_of(target: str, runs: Sequence[RunRecord]) -> RemoteTime:
    def spent(part: str) -> list[float]:
        return [run.remote_parts.get(part, 0.0) for run in runs]

    queue = spent("queue")
    return RemoteTime(
        target, len(runs), sum(spent("upload")), sum(queue), max(queue), sum(spent("setup")), sum(spent("run"))
    )


def remote_block(report: Report) -> Markup:
    """Return the table of the page; nothing if no test ran remotely."""
    found = remote_times(report)
    if not found:
        return Markup()
    rows = [
        tag(
            "tr",
            *[tag("td", seconds(value), class_="number") for value in (one.queue_s, one.longest_queue_s)],
            *[tag("td", seconds(value), class_="number") for value in (one.upload_s, one.setup_s, one.run_s)],
            tag("td", tag("bdi", shorten(one.target, 300)), _actions(one)),
        )
        for one in found[:_TARGETS]
    ]
    left_out = len(found) - len(rows)
    names = ("queue", "longest queue", "upload", "setup", "run", "target")
    return join(
        [
            tag("h3", "Remote actions"),
            tag(
                "p",
                "Queue: waiting for a worker. Upload: of inputs, by Bazel. Setup: of inputs, on the worker.",
                class_="muted",
            ),
            table(names, rows, "times of remote actions"),
            tag("p", f"and {plural(left_out, 'more target')}", class_="muted") if left_out else "",
        ]
    )


def _actions(one: RemoteTime) -> Markup:
    return tag("span", plural(one.actions, "action"), class_="muted under") if one.actions > 1 else Markup()
