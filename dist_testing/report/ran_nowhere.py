"""Lists the cases that no job of a matrix has run, with the reason of each job.

Each of the RESULTS is what one job has left: a file in JUnit's format, of any runner, a file of build events, an event
stream, or a folder with such files.

Exit status: 0 if some job has run each case, except for those that a quarantine file skips; 1 if a case ran in no job;
2 if a result cannot be read, or has no case.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dist_testing.core.ground.error_text import shorten, summarise
from dist_testing.core.ground.errors import ReportError
from dist_testing.core.ground.record import NO_HARDWARE, CaseRecord, case_name, module_of
from dist_testing.report.gather import gather
from dist_testing.report.words import clean, grouped, one_line, plural

NAME = "ran-nowhere"
_NOT_COLLECTED = "not collected"
# What pytest writes of a file that it cannot collect, or that skips as a whole; the text has the reason.
_OF_FILES = ("collection failure", "collection skipped")
_MAX_REASON_CHARS = 300
# In the message of a case that failed because its hardware is missing, between its name and the reason.
_MISSING = "hardware missing: "

# The property and the reason of a case that a quarantine file skips. One that skips itself has only the property.
_QUARANTINED = ("quarantine", "skipped"), "quarantined: "

# Name of a case, or of a file that was not collected, to the reason why it did not run; "" if it ran.
Job = Mapping[str, str]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, after the name of the command."""
    made = argparse.ArgumentParser(
        prog=f"report {NAME}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument(
        "--cases",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="output of `pytest --dist-needs-json`: cases that must run, also if every job deselects them; repeatable",
    )
    made.add_argument("results", nargs="+", type=Path, metavar="RESULTS", help="the results of each job")
    return made


def run(options: argparse.Namespace) -> int:
    """Print what no job has run, and return the exit status.

    Raises:
        ReportError: If a file cannot be read, or a result has no case or is named twice.
    """
    paths = options.results
    problems: list[str] = []
    quarantined: set[str] = set()
    jobs = {name: _read_job(path, problems, quarantined) for name, path in zip(job_names(paths), paths, strict=True)}
    listed = [case for path in options.cases for case in _listed_cases(path)]
    found = nowhere(jobs, listed)
    for name, job in jobs.items():
        ran = sum(not reason for reason in job.values())
        print(f"{one_line(name)}: has run {ran} of {plural(len(job), 'case')}")
    count = len({*listed, *(case for job in jobs.values() for case in job)})
    known = len(quarantined & found.keys())
    more = f", {known} of them quarantined" if known else ""
    print(f"{len(found)} of {plural(count, 'case')} ran in no job{more}")
    for line in _lines(found, list(jobs)):
        print(line)
    return 2 if problems else 1 if len(found) > known else 0


def job_names(paths: Sequence[Path]) -> list[str]:
    """Return a name for each job: the name of its file, after as many folders as the names need to differ.

    Raises:
        ReportError: If two paths are the same file.
    """
    parts = [path.absolute().parts for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        names = [str(Path(*part[-count:])) for part in parts]
        if len(set(names)) == len(names):
            return names
    twice = next(path for path, part in zip(paths, parts, strict=True) if parts.count(part) > 1)
    raise ReportError(
        f"{twice}: named twice.\n"
        "Each of the results is that of one job, and the path is the name of the job.\n"
        "Name each once; keep the results of each job in a file or a folder of its own."
    )


def _read_job(path: Path, problems: list[str], quarantined: set[str]) -> Job:
    """Return the cases of a job. Print what cannot be read, and add it to `problems`.

    Add the cases that a quarantine file skips to `quarantined`.
    """
    report = gather([path], is_brief=True)
    cases = [case for run in report.runs for case in run.cases]
    told = [f"{problem.subject}: {clean(problem.text)}" for problem in report.problems]
    if not cases:
        raise ReportError(
            "\n".join(told)
            or f"{path}: no test cases.\n"
            "The job has collected none, or all of its cases were deselected.\n"
            "Run the job again, or leave its results out."
        )
    by_row, reason = _QUARANTINED
    quarantined |= {case.name for case in cases if by_row in case.properties and case.message.startswith(reason)}
    problems += told
    for problem in told:
        sys.stderr.write(f"report: {problem}\n")
    reasons = grouped((module_of(case.name) if case.when == "collect" else case.name, _reason(case)) for case in cases)
    # Of several runs of a case, such as those of two targets with the same file, one is enough.
    return {name: "" if "" in every else "; ".join(dict.fromkeys(every)) for name, every in reasons.items()}


def _reason(case: CaseRecord) -> str:
    """Return why a case, or a file as a whole, did not run; "" if it did."""
    said = case.message
    if case.has_run and case.when != "collect" and case.cause != NO_HARDWARE:
        return ""
    if case.cause == NO_HARDWARE:
        # Without the name, so that cases with the same reason stand together.
        said = said.rpartition(_MISSING)[2]
    if said in _OF_FILES and case.text.strip():
        said = f"{said}: {case.text.strip().splitlines()[-1]}"
    return one_line(shorten(said, _MAX_REASON_CHARS)) or "skipped without a reason"


def _listed_cases(path: Path) -> list[str]:
    """Return the cases in the output of `--dist-needs-json`, which also has other lines of pytest."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        found = [case_name(str(json.loads(line)["case"])) for line in lines if line.startswith("{")]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise _no_list(path, f"cannot be read as a list of cases: {summarise(error)}") from error
    if not found:
        raise _no_list(path, "no cases")
    return found


def _no_list(path: Path, what: str) -> ReportError:
    return ReportError(
        f"{path}: {what}.\n"
        "--cases reads a line of JSON for each case, and leaves out lines that begin otherwise.\n"
        "Write the file with `pytest -q --dist-needs-json`."
    )


def nowhere(jobs: Mapping[str, Job], listed: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """Return the cases that no job has run, with the reason of each job, in the order of the jobs.

    `listed` has cases that must run, and that may be in no job.
    """
    names = list(dict.fromkeys([*(name for job in jobs.values() for name in job), *listed]))
    # A file that one job could not collect is none of the cases if another job knows its cases.
    files = {owner for name in names for owner in _owners(name)}
    return {
        name: tuple(_why_not(name, job) for job in jobs.values())
        for name in names
        if name not in files and all(job.get(name, _NOT_COLLECTED) for job in jobs.values())
    }


def _owners(name: str) -> Iterator[str]:
    """Yield what a case may be in: class, file and folders, by their dotted names."""
    head = name.partition("[")[0]
    while head := head.rpartition(".")[0]:
        yield head


def _why_not(name: str, job: Job) -> str:
    return next((job[place] for place in (name, *_owners(name)) if place in job), _NOT_COLLECTED)


def _lines(found: Mapping[str, tuple[str, ...]], jobs: Sequence[str]) -> Iterator[str]:
    """Yield cases with the same reasons together."""
    for reasons, cases in grouped((reasons, case) for case, reasons in found.items()).items():
        yield ""
        yield from map(one_line, cases)
        yield from (f"    {one_line(job)}: {reason}" for job, reason in zip(jobs, reasons, strict=True))
