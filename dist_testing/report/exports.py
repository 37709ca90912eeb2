"""Writes results for other programs: JSON with a published schema, CTRF, and one JUnit file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dist_testing.core.bazel.junit import EXPECTED, Outcome, XmlCase, XmlSuite, write_suites
from dist_testing.core.ground.error_text import shorten
from dist_testing.report import facts
from dist_testing.report.model import CaseRecord, RankRecord, Report, RunRecord, Status

# Increase it when a field is removed or changes its meaning. Readers leave out fields that they do not know.
_SCHEMA = 1
SCHEMA_FILE = Path(__file__).parent / "report.schema.json"
_MAX_TEXT_CHARS = 64 * 1024
# The year 5138. Seconds.
_MAX_S = 1e11

# CTRF knows five words.
_CTRF: Mapping[Status, str] = {
    "failed": "failed",
    "error": "failed",
    "unfinished": "failed",
    "xpassed": "passed",
    "xfailed": "passed",
    "skipped": "skipped",
    "passed": "passed",
}
_JUNIT: Mapping[Status, Outcome] = {
    "failed": "failed",
    "error": "error",
    "unfinished": "error",
    "xpassed": "passed",
    "xfailed": "skipped",
    "skipped": "skipped",
    "passed": "passed",
}


def exported(report: Report) -> str:
    """Return the report as JSON, in the form of report.schema.json."""
    data = {
        "schema": _SCHEMA,
        "invocations": [
            {
                "name": one.name,
                "command": one.command,
                "began_wall_s": one.began_wall_s,
                "duration_s": _finite(one.duration_s),
                "exit_code": one.exit_code,
                "exit_name": one.exit_name,
                "is_complete": one.is_complete,
                "version": one.version,
                "identifier": one.identifier,
                "revision": one.revision,
                "test_filter": one.test_filter,
            }
            for one in report.invocations
        ],
        "counts": dict(facts.status_counts(report)),
        "runs": [_run(run) for run in report.runs],
        "not_run": [
            {"kind": line.kind, "target": line.target, "case": line.case, "reason": line.reason, "count": line.count}
            for line in facts.ledger(report)
        ],
        "problems": [{"subject": problem.subject, "text": problem.text} for problem in report.problems],
    }
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _run(run: RunRecord) -> dict[str, Any]:
    return {
        "target": run.target,
        "invocation": run.invocation,
        "configuration": run.configuration,
        "shard": run.shard,
        "run": run.run,
        "attempt": run.attempt,
        "status": run.status,
        "cached": run.cached,
        "strategy": run.strategy,
        "host": run.host,
        "backend": run.backend,
        "began_wall_s": run.began_wall_s,
        "duration_s": _finite(run.duration_s),
        "to_come": run.to_come,
        "is_complete": run.is_complete,
        "has_results": run.has_results,
        "versions": dict(run.versions),
        "cases": [_case(case) for case in run.cases],
    }


def _case(case: CaseRecord) -> dict[str, Any]:
    return {
        "name": case.name,
        "status": case.status,
        "duration_s": _finite(case.duration_s),
        "message": shorten(case.message, _MAX_TEXT_CHARS),
        "text": shorten(case.text, _MAX_TEXT_CHARS),
        "world_size": case.world_size,
        "isolation": case.isolation,
        "cause": case.cause,
        "culprit": case.culprit,
        "failing": list(case.failing),
        "victims": list(case.victims),
        "gpus": case.gpus,
        "gpu_wait_s": _finite(case.gpu_wait_s),
        "leaked": list(case.leaked),
        "tries": case.tries,
        "ranks": [_rank(rank, case.began_at_s) for rank in case.ranks],
        "faults": [
            {
                "text": shorten(fault.text, _MAX_TEXT_CHARS),
                "ranks": list(fault.ranks),
                "seen_s": _finite(fault.at_s - (case.began_at_s or 0.0)),
            }
            for fault in case.faults
        ],
    }


def _rank(rank: RankRecord, begin_s: float | None) -> dict[str, Any]:
    seen_s = None if rank.seen_at_s is None or begin_s is None else _finite(rank.seen_at_s - begin_s)
    return {
        "rank": rank.rank,
        "outcome": rank.outcome,
        "description": rank.description,
        "phase": rank.phase,
        "operation": rank.operation,
        "seen_s": seen_s,
        "warnings": list(rank.warnings),
        "ledger": None
        if rank.ledger is None
        else {"state": rank.ledger.state, "place": rank.ledger.place, "calls": list(rank.ledger.calls)},
        "phases": [
            {
                "name": phase.name,
                "begin_s": _finite(phase.begin_s - (begin_s or 0.0)),
                "duration_s": _finite(phase.end_s - phase.begin_s),
            }
            for phase in rank.phases
        ],
    }


def _finite(seconds: float) -> float:
    """Return a time in microseconds' precision; a damaged file may have times that JSON cannot express."""
    return round(min(max(seconds, -_MAX_S), _MAX_S), 6) if seconds == seconds else 0.0


def ctrf(report: Report) -> str:
    """Return the report in the Common Test Report Format (ctrf.io)."""
    tests = []
    counts: Counter[str] = Counter()
    passes = facts.last_passes(report)
    flaky = {run.action for run in report.runs if passes.get(run.action, 0) > run.attempt}
    for run in facts.final_runs(report):
        for case in run.cases:
            status = _CTRF[case.status]
            counts[status] += 1
            test: dict[str, Any] = {
                "name": case.name,
                "status": status,
                "duration": round(_finite(case.duration_s) * 1000),
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
    began = [one.began_wall_s for one in report.invocations if one.began_wall_s is not None]
    start = min(began, default=0.0)
    stop = max((one.began_wall_s + one.duration_s for one in report.invocations if one.began_wall_s), default=start)
    summary = {name: counts[name] for name in ("passed", "failed", "pending", "skipped", "other")}
    times = {"start": round(_finite(start) * 1000), "stop": round(_finite(stop) * 1000)}
    results = {
        "tool": {"name": "dist_testing"},
        "summary": {"tests": len(tests), **summary, **times},
        "tests": tests,
    }
    content = {"reportFormat": "CTRF", "specVersion": "0.0.0", "results": results}
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def write_junit(report: Report, path: Path) -> None:
    """Write all runs into one file in JUnit's format, one suite for each run.

    Raises:
        OSError: If it cannot be written.
    """
    write_suites(path, [_suite(run) for run in facts.final_runs(report)])


def _suite(run: RunRecord) -> XmlSuite:
    cases = []
    for case in run.cases:
        # A dot inside parameters belongs to the name.
        classname = case.name.partition("[")[0].rpartition(".")[0]
        name = case.name.removeprefix(f"{classname}.") if classname else case.name
        message = f"{EXPECTED}{case.message}" if case.status == "xfailed" else case.message
        properties: list[tuple[str, object]] = [("world_size", case.world_size)] if case.world_size else []
        if case.cause not in ("", "none"):
            properties.append(("cause", case.cause))
        if case.culprit is not None:
            properties.append(("culprit", case.culprit))
        cases.append(
            XmlCase(classname, name, _JUNIT[case.status], _finite(case.duration_s), message, case.text, properties)
        )
    label = f"{run.target}{run.in_part}"
    return XmlSuite(label, tuple(cases))
