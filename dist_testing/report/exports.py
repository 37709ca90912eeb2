"""Writes results for other programs: JSON with a published schema, and CTRF."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from dist_testing.core.ground.codec import shape_of
from dist_testing.core.ground.error_text import shorten
from dist_testing.core.ground.record import BAD
from dist_testing.report import facts
from dist_testing.report.model import Report

# Increase it when a field is removed or changes its meaning. Readers leave out fields that they do not know.
_SCHEMA = 2
SCHEMA_FILE = Path(__file__).parent / "report.schema.json"
_MAX_TEXT_CHARS = 64 * 1024


def exported(report: Report) -> str:
    """Return the report as JSON, in the form of report.schema.json."""
    write = shape_of(Report).write
    assert write is not None
    written = write(replace(report, not_run=tuple(facts.ledger(report))))
    for run in written["runs"]:
        del run["logs"]
    data = {"schema": _SCHEMA, "counts": dict(facts.status_counts(report)), **written}
    return json.dumps(data, indent=1, allow_nan=False, default=str) + "\n"


def ctrf(report: Report) -> str:
    """Return the report in the Common Test Report Format (ctrf.io)."""
    tests = []
    counts: Counter[str] = Counter()
    passes = facts.last_passes(report)
    flaky = {run.action for run in report.runs if passes.get(run.action, 0) > run.attempt}
    for run in facts.final_runs(report):
        for case in run.cases:
            status = "failed" if case.status in BAD else "skipped" if case.status == "skipped" else "passed"
            counts[status] += 1
            test: dict[str, Any] = {
                "name": case.name,
                "status": status,
                "duration": round(case.duration_s * 1000),
                "suite": [run.target],
                "rawStatus": case.status,
                "retries": run.attempt - 1,
                "flaky": run.action in flaky and status == "passed",
            }
            if case.message:
                test["message"] = shorten(case.message, _MAX_TEXT_CHARS)
            if case.text:
                test["trace"] = shorten(case.text, _MAX_TEXT_CHARS)
            tests.append(test)
    start = min((one.began_wall_s for one in report.invocations if one.began_wall_s is not None), default=0.0)
    stop = max((one.began_wall_s + one.duration_s for one in report.invocations if one.began_wall_s), default=start)
    summary = {name: counts[name] for name in ("passed", "failed", "pending", "skipped", "other")}
    results = {
        "tool": {"name": "dist_testing"},
        "summary": {"tests": len(tests), **summary, "start": round(start * 1000), "stop": round(stop * 1000)},
        "tests": tests,
    }
    content = {"reportFormat": "CTRF", "specVersion": "0.0.0", "results": results}
    return json.dumps(content, indent=1, allow_nan=False) + "\n"
