"""Makes a report of one invocation of Bazel from its build events and the files that they name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dist_testing.report.build_events import Attempt, Invocation, read_invocation
from dist_testing.report.model import NotRun, Problem, Report, RunRecord
from dist_testing.report.run_files import RunFiles, filled_run

# A file that is younger than the end of the invocation is of a later run. Clocks of file systems differ. Seconds.
_CLOCK_S = 10.0
_NOT_REACHED = ("NO_STATUS", "INCOMPLETE")


def read_bazel(path: Path, disk_cache: Path | None, *, is_brief: bool) -> tuple[Report, set[Path]]:
    """Read build events. Returns the report, and the test.xml files that it has read."""
    invocation = read_invocation(path, disk_cache)
    problems: list[Problem] = []
    if not invocation.is_complete:
        problems.append(
            Problem(
                str(path),
                f"the build events are incomplete after {len(invocation.attempts)} results.\n"
                "Bazel was killed, could not write them, or still runs.\n"
                "The report has what there is; results may be missing.",
            )
        )
    runs = []
    for attempt in invocation.attempts:
        run, found = _run(attempt, invocation, is_brief)
        runs.append(run)
        problems += found
    report = Report(
        (invocation,),
        tuple(runs),
        tuple(sorted({*invocation.summaries, *invocation.broken})),
        tuple(_not_run(invocation)),
        tuple(problems),
    )
    return report, {attempt.xml.resolve() for attempt in invocation.attempts if attempt.xml is not None}


def _not_run(invocation: Invocation) -> Iterator[NotRun]:
    for label in invocation.incompatible:
        yield NotRun("incompatible", label, "", "not for this platform or its GPUs, so Bazel did not run it", 0)
    for label, message in sorted({**invocation.unknown, **invocation.broken}.items()):
        yield NotRun("not built", label, "", message.partition("\n")[0] or "it could not be built", 0)
    for label, status in sorted(invocation.summaries.items()):
        if status in _NOT_REACHED and label not in invocation.broken:
            yield NotRun("not reached", label, "", "Bazel ended before the target ran", 0)


def _run(attempt: Attempt, invocation: Invocation, is_brief: bool) -> tuple[RunRecord, list[Problem]]:
    if _is_stale(attempt, invocation):
        return attempt, [
            Problem(
                attempt.target,
                "a later run has replaced its test.xml, so its cases are unknown.\n"
                "Bazel keeps only the files of the last run of a target on this machine.\n"
                "Make the report right after the invocation, or keep a copy of bazel-testlogs.",
            )
        ]
    run, problems = filled_run(attempt, _files(attempt), is_brief=is_brief)
    if attempt.xml is None and not run.has_results:
        problems.append(Problem(f"{run.target}{run.in_part}", _without_xml(attempt)))
    return run, problems


def _without_xml(attempt: Attempt) -> str:
    """Return why the cases of a run are unknown."""
    uri = next((output.uri for output in attempt.outputs if output.name == "test.xml"), "")
    unknown = ", so its cases are unknown.\n"
    if not uri:
        return (
            f"it has left no test.xml{unknown}"
            "The test or its worker ended before Bazel could write the file.\n"
            "Its log may tell why; run the target again."
        )
    if uri.startswith("file:"):
        return (
            f"its test.xml is not on this machine{unknown}"
            "It was removed, or the build events are of another machine.\n"
            "Make the report where Bazel ran, right after the invocation; --disk-cache=DIR names a cache to look into."
        )
    return (
        f"its test.xml is not on this machine{unknown}"
        "Bazel left it on the remote cache (--remote_download_minimal), or it was removed.\n"
        "--remote_download_outputs=toplevel fetches the results of tests, and so does --config=ci; "
        "--disk-cache=DIR names a cache to look into."
    )


def _is_stale(attempt: Attempt, invocation: Invocation) -> bool:
    if attempt.xml is None or invocation.began_wall_s is None or not invocation.duration_s:
        return False
    return attempt.xml.stat().st_mtime > invocation.began_wall_s + invocation.duration_s + _CLOCK_S


def _files(attempt: Attempt) -> RunFiles:
    paths = {output.name: output.path for output in attempt.outputs if output.path is not None}
    archive = next((path for path in paths.values() if path.suffix == ".zip"), None)
    folder = None
    # Files beside the test.xml of the last attempt; those of earlier attempts have names of their own.
    if attempt.xml is not None and attempt.xml.name == "test.xml":
        folder = attempt.xml.parent / "test.outputs"
        packed = folder / "outputs.zip"
        archive = archive or (packed if packed.is_file() else None)
    return RunFiles(attempt.xml, (), archive, folder, paths.get("test.log"))
