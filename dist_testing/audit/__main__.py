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
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from dist_testing.audit.command import Ran, Runner
from dist_testing.audit.findings import (
    FAULTS,
    Audit,
    CaseResult,
    FaultResult,
    judge,
    judge_clean,
    moment_of,
    why_not_planted,
)
from dist_testing.audit.hook.record import Plan
from dist_testing.audit.program import parser_for, run_program, seconds_in, show, tell
from dist_testing.audit.seen import WHOLE, CaseSeen
from dist_testing.audit.show import lines, page
from dist_testing.core.ground.error_text import did_you_mean
from dist_testing.core.ground.errors import UsageError
from dist_testing.report.files import write_text

_HOLES, _NOTHING = 1, 3
# Seconds beyond the limits for which a rank hangs: the audit ends it before.
_HOLD_EXTRA_S = 60.0
_tell = partial(tell, "audit")


class NothingToAuditError(UsageError):
    """The command is no test run, or none of its cases can be audited."""


@dataclass(frozen=True)
class Settings:
    """What the command line asks for."""

    faults: tuple[str, ...]  # names of the faults
    cases: tuple[str, ...] = ()  # Parts of the ids of the cases to audit, with * and ?; none for all
    rank: int = 1  # the rank that gets faults; in a smaller world, the last rank
    slow_s: float = 30.0  # from how many seconds on a fault is noticed too late
    limit_s: float = 120.0  # how long the audit waits after a fault, in seconds
    suite_limit_s: float = 3600.0  # Limit of a run before a fault, in seconds
    collectives: bool = True  # whether to look at collective calls; without, faults come after `init_process_group`


_DEFAULTS = Settings(tuple(FAULTS))


def main(arguments: Sequence[str] | None = None) -> int:
    """Audit the suite that the command line names, and return the exit status."""
    return run_program(_parser(), arguments, _run)


def _run(given: argparse.Namespace, command: list[str], folder: Path) -> int:
    settings = _settings(given, command)
    logs = Path(tempfile.mkdtemp(prefix="dist-audit-") if given.logs is None else given.logs)
    logs.mkdir(parents=True, exist_ok=True)
    try:
        found = _audit(command, Runner(command, folder, logs, settings.limit_s), settings)
        _write(found, given)
        _check_audited(found)
    except NothingToAuditError as error:
        _tell(str(error))
        return _NOTHING
    print(f"audit: output of the runs: {logs}")
    return _HOLES if found.hole_count else 0


def _audit(command: Sequence[str], runner: Runner, settings: Settings) -> Audit:
    """Run the suite as it is, each case with ranks alone, then each fault in each of these cases."""
    began_s = time.monotonic()
    _tell(f"the suite as it is: {' '.join(command)}")
    whole = runner.run(Plan(collectives=settings.collectives), settings.suite_limit_s)
    _check(command, whole, settings)
    found = Audit(list(command), whole.exit_status, whole.seconds, settings.slow_s, settings.limit_s)
    found.unseen = _unseen(whole)
    with_ranks = sum(bool(case.ranks) for case in whole.seen.cases.values())
    _tell(f"{len(whole.seen.cases)} cases in {whole.seconds:.1f} s, {with_ranks} of them started ranks")
    for case in whole.seen.cases.values():
        result = CaseResult(case.id, case.outcome, case.world_size)
        found.cases.append(result)
        result.why_not = _why_not(case, whole, settings)
        if case.outcome == "passed" and not case.ranks and case.processes > 0:
            result.holes = ("ran_nothing",)
        if not result.why_not:
            case_began_s = time.monotonic()
            _audit_case(result, runner, settings)
            result.seconds = time.monotonic() - case_began_s
    found.total_s = time.monotonic() - began_s
    return found


def _audit_case(result: CaseResult, runner: Runner, settings: Settings) -> None:
    selected = None if result.id == WHOLE else [result.id]
    clean = runner.run(Plan(selected, collectives=settings.collectives), settings.suite_limit_s)
    alone = clean.seen.cases.get(result.id)
    if alone is None or not alone.ranks or clean.exit_status != 0 or alone.outcome not in ("passed", ""):
        result.why_not = f"it does not pass alone: exit status {clean.exit_status}, {clean.log}"
        _tell(f"{result.id}: {result.why_not}")
        return
    result.world_size = alone.world_size
    result.faults.append(judge_clean(clean, result.id))
    rank = min(settings.rank, alone.world_size - 1)
    for fault in settings.faults:
        if why := why_not_planted(fault, alone):
            result.faults.append(FaultResult(fault, False, why, rank))
            continue
        hold_s = settings.limit_s + _HOLD_EXTRA_S
        plan = Plan(selected, fault, rank, moment_of(alone, rank), hold_s, settings.collectives)
        # Until the fault comes, the run is like the one without it; a machine may be ten times as slow.
        limit_s = min(settings.suite_limit_s, 10 * clean.seconds + settings.limit_s)
        ran = runner.run(plan, limit_s)
        one = judge(plan, ran, clean, result.id, slow_s=settings.slow_s, limit_s=settings.limit_s)
        result.faults.append(one)
        _tell(f"{result.id}: {fault}: {', '.join(one.holes) or ('noticed' if one.planted else one.note)}")


def _check(command: Sequence[str], ran: Ran, settings: Settings) -> None:
    words = " ".join(command)
    if ran.exit_status is None:
        raise NothingToAuditError(
            f"{words}: still running after {settings.suite_limit_s:g} s, and stopped.\n"
            "The suite as it is needs more time, or hangs.\n"
            f"Raise --suite-limit, or give a command that runs fewer tests.{ran.end_of_output}"
        )
    if not ran.seen.processes:
        raise NothingToAuditError(
            f"{words}: no Python process of it ran the audit's hook (exit status {ran.exit_status}).\n"
            "It starts no Python, or starts it with -I, -E or -S, or in a container: PYTHONPATH has no effect there.\n"
            f"Give the command that runs the tests, such as -- python -m pytest tests/.{ran.end_of_output}"
        )
    if not ran.seen.cases or (WHOLE in ran.seen.cases and not any(case.ranks for case in ran.seen.cases.values())):
        what = "pytest collected no test" if ran.seen.has_pytest else "no test of pytest or unittest ran, and no rank"
        raise NothingToAuditError(
            f"{words}: {what} (exit status {ran.exit_status}).\n"
            "The command is no test run, or its selection of tests is empty.\n"
            f"Give the command that runs the tests, such as -- python -m pytest tests/.{ran.end_of_output}"
        )


def _why_not(case: CaseSeen, whole: Ran, settings: Settings) -> str:
    if not case.ranks:
        return "it started no ranks"
    if case.outcome not in ("passed", "") or (case.id == WHOLE and whole.exit_status != 0):
        return f"it does not pass: {case.outcome or f'exit status {whole.exit_status}'}"
    # Ids of parametrized cases have brackets, which would be sets of characters.
    patterns = [f"*{pattern.replace('[', '[[]')}*" for pattern in settings.cases]
    if patterns and not any(fnmatchcase(case.id, pattern) for pattern in patterns):
        return "--cases leaves it out"
    return ""


def _unseen(ran: Ran) -> list[str]:
    """Return what the audit could not see in a suite."""
    told = []
    if WHOLE in ran.seen.cases:
        told.append(
            "Cases: neither pytest nor unittest runs this suite, so the whole command is one case, and only its exit "
            "status and its output count."
        )
    if any(not moments - {"init"} for case in ran.seen.cases.values() for moments in case.ranks.values()):
        told.append(
            "Collective calls: at least one rank makes none through torch.distributed, so its faults come right after "
            "init_process_group."
        )
    if any(case.ranks and not case.outcome for name, case in ran.seen.cases.items() if name != WHOLE):
        told.append("Results: at least one case that started ranks has no result.")
    return told


def _check_audited(found: Audit) -> None:
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
