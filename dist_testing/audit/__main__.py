"""Audits a suite under its own harness: `python -m dist_testing.audit [OPTIONS] -- TEST COMMAND`.

The suite runs as it is. Then each case that starts ranks runs alone, and once for each fault, which comes on one rank.
The table lists what stayed green, what was noticed late, what blamed another rank, and what was left behind. No file of
the suite is changed.

Exit status: 0 if the harness noticed every fault; 1 if there are holes; 2 if the command line is wrong or a file cannot
be written; 3 if there is nothing to audit, such as a suite whose cases start no ranks, or none of which passes;
130 if it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from dist_testing.audit.audited_suite import NothingToAuditError, Settings, audit
from dist_testing.audit.command import Runner
from dist_testing.audit.findings import FAULTS, Audit
from dist_testing.audit.program import parser_for, run_program, seconds_in, show, tell
from dist_testing.audit.show import lines, page
from dist_testing.core.ground.error_text import did_you_mean
from dist_testing.core.ground.errors import UsageError
from dist_testing.report.files import write_text

_HOLES, _NOTHING = 1, 3
_DEFAULTS = Settings(tuple(FAULTS))


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit the suite that the command line names, and return the exit status."""
    return run_program(_parser(), arguments, _run)


def _run(given: argparse.Namespace, command: list[str], folder: Path) -> int:
    settings = _settings(given, command)
    logs = Path(tempfile.mkdtemp(prefix="dist-audit-") if given.logs is None else given.logs)
    logs.mkdir(parents=True, exist_ok=True)
    try:
        found = audit(command, Runner(command, folder, logs, settings.limit_s), settings, partial(tell, "audit"))
        _write(found, given)
        _check_audited(found)
    except NothingToAuditError as error:
        tell("audit", str(error))
        return _NOTHING
    print(f"audit: output of the runs: {logs}")
    return _HOLES if found.hole_count else 0


def _check_audited(found: Audit) -> None:
    """Refuse a suite of which no case could be audited."""
    if found.audited:
        return
    if (idle := len(found.without_ranks)) == len(found.cases):
        raise NothingToAuditError(
            f"no case started ranks: {idle} cases ran, and no process of them called "
            "torch.distributed.init_process_group.\n"
            "The suite needs no ranks, or its ranks have no hook: programs other than Python, Python with -I, -E or "
            "-S, containers, other machines.\n"
            "Select tests that start ranks."
        )
    reasons = {case.why_not for case in found.cases if case.world_size}
    raise NothingToAuditError(
        f"no case could be audited: {'; '.join(sorted(reasons)[:3])}.\n"
        "A fault tells something only about a case that passes without it.\n"
        "Select cases that pass, alone too; or change --cases."
    )


def _write(found: Audit, given: argparse.Namespace) -> None:
    show(lines(found))
    if given.json is not None:
        # Paths are kept as texts.
        content = json.dumps(found.to_json(), indent=2, default=str)
        write_text(given.json, content + "\n")
        print(f"audit: {given.json.absolute()}: JSON")
    if given.page is not None:
        write_text(given.page, page(found, made_wall_s=time.time()))
        print(f"audit: {given.page.absolute()}: page")


def _settings(given: argparse.Namespace, command: Sequence[str]) -> Settings:
    if "DIST_TESTING_AUDIT" in os.environ:
        raise UsageError(
            f"{' '.join(command)}: this process belongs to an audit already.\n"
            "The audited suite starts an audit of its own, and both would plant faults.\n"
            "Leave out the test that does, or unset DIST_TESTING_AUDIT."
        )
    faults = tuple(dict.fromkeys(given.faults.split(",")))
    for fault in faults:
        if fault not in FAULTS:
            raise UsageError(
                f"--faults={given.faults}: there is no fault {fault!r}.\n"
                f"The faults are {', '.join(FAULTS)}.\n"
                f"{did_you_mean(fault, FAULTS, 'Write some of them with commas between.')}"
            )
    if not (given.rank.isascii() and given.rank.isdecimal() and len(given.rank) < 7):
        raise UsageError(
            f"--rank={given.rank}: expected the number of a rank.\n"
            "The rank gets the faults; in a world without it, the last rank does.\n"
            "Write --rank=0, for example."
        )
    return Settings(
        faults,
        tuple(given.cases or ()),
        int(given.rank),
        seconds_in("--slow", given.slow),
        seconds_in("--limit", given.limit),
        seconds_in("--suite-limit", given.suite_limit),
        collectives=given.at == "collective",
    )


def _parser() -> argparse.ArgumentParser:
    parser = parser_for("audit", __doc__)
    add = parser.add_argument
    add("--faults", default=",".join(FAULTS), help="which faults, with commas between (default: %(default)s)")
    add("--cases", action="append", metavar="PATTERN", help="audit only cases whose id contains it; * and ? work")
    add("--rank", default=str(_DEFAULTS.rank), metavar="N", help="the rank that gets the faults (default: %(default)s)")
    add(
        "--at",
        choices=("collective", "init"),
        default="collective",
        help="when: at the first collective call (default), or right after init_process_group",
    )
    add("--slow", default=f"{_DEFAULTS.slow_s:g}", metavar="S", help="noticed after more seconds is too late (30)")
    add("--limit", default=f"{_DEFAULTS.limit_s:g}", metavar="S", help="how long to wait after a fault (120)")
    add("--suite-limit", default=f"{_DEFAULTS.suite_limit_s:g}", metavar="S", help="limit of the suite as it is (3600)")
    add("--page", type=Path, metavar="FILE", help="write the findings as an HTML page")
    add("--logs", type=Path, metavar="DIR", help="folder for the output of the runs (default: a new one in TMPDIR)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
