"""Runs an audit: the suite as it is, each case with ranks alone, then each fault in each of these cases."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from dist_testing.audit.command import Ran, Runner
from dist_testing.audit.findings import Audit, CaseResult, FaultResult, judge, judge_clean, moment_of, why_not_planted
from dist_testing.audit.hook.record import Plan
from dist_testing.audit.seen import WHOLE, CaseSeen
from dist_testing.core.ground.errors import UsageError

# Seconds beyond the limits for which a rank hangs: the audit ends it before.
_HOLD_EXTRA_S = 60.0


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


def audit(command: Sequence[str], runner: Runner, settings: Settings, tell: Callable[[str], None]) -> Audit:
    """Audit a suite. Raises NothingToAuditError if there is nothing to audit."""
    began_s = time.monotonic()
    tell(f"the suite as it is: {' '.join(command)}")
    whole = runner.run(Plan(collectives=settings.collectives), settings.suite_limit_s)
    _check(command, whole, settings)
    found = Audit(list(command), whole.exit_status, whole.seconds, settings.slow_s, settings.limit_s)
    found.unseen = _unseen(whole)
    with_ranks = sum(bool(case.ranks) for case in whole.seen.cases.values())
    tell(f"{len(whole.seen.cases)} cases in {whole.seconds:.1f} s, {with_ranks} of them started ranks")
    for case in whole.seen.cases.values():
        result = CaseResult(case.id, case.outcome, case.world_size)
        found.cases.append(result)
        result.why_not = _why_not(case, whole, settings)
        if case.outcome == "passed" and not case.ranks and case.processes > 0:
            result.holes = ("ran_nothing",)
        if not result.why_not:
            case_began_s = time.monotonic()
            _audit_case(result, runner, settings, tell)
            result.seconds = time.monotonic() - case_began_s
    found.total_s = time.monotonic() - began_s
    return found


def _audit_case(result: CaseResult, runner: Runner, settings: Settings, tell: Callable[[str], None]) -> None:
    selected = None if result.id == WHOLE else [result.id]
    clean = runner.run(Plan(selected, collectives=settings.collectives), settings.suite_limit_s)
    alone = clean.seen.cases.get(result.id)
    if alone is None or not alone.ranks or clean.exit_status != 0 or alone.outcome not in ("passed", ""):
        result.why_not = f"it does not pass alone: exit status {clean.exit_status}, {clean.log}"
        tell(f"{result.id}: {result.why_not}")
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
        tell(f"{result.id}: {fault}: {', '.join(one.holes) or ('noticed' if one.planted else one.note)}")


def _check(command: Sequence[str], ran: Ran, settings: Settings) -> None:
    """Refuse a command that has nothing to audit."""
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
