"""Runs files of torch's own tests with torch's classes and with this library's, and compares each outcome.

    python -m tests.compat.torch_files --keep=outcomes.json FOLDER distributed/test_dist2.py ...

FOLDER is `test/` of torch's sources, of the release that is installed. A second run with the same `--keep` runs only
what is missing there. The exit code is 1 if an outcome differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import TypedDict

# Both read it: the limit of one test; by default it is 300. Seconds.
_CASE_LIMIT_S = 60
_LIMIT_S = 3600
_OPTIONS = ("-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit2")
_FLAGS = {
    "torch": ("-p", "no:dist_testing.core.pytest.plugin"),
    "ours": ("-p", "dist_testing.compat.pytest_install"),
}
_MISSING = "no result"


class FileRun(TypedDict):
    """One run of a file."""

    outcomes: dict[str, str]  # test to "passed", "skipped" or "failed"
    seconds: int  # its duration
    end: str  # "whole", or why the run ended early


def _run(folder: Path, file: str, flags: tuple[str, ...]) -> FileRun:
    with tempfile.TemporaryDirectory() as work:
        results = Path(work, "results.xml")
        command = [sys.executable, "-m", "pytest", file, *_OPTIONS, *flags, f"--junitxml={results}"]
        began_s = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(_CASE_LIMIT_S)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        end = "whole"
        try:
            code = process.wait(_LIMIT_S)
            # 5: the file has no test.
            if code not in (0, 1, 5):
                end = f"pytest ended with code {code}"
        except subprocess.TimeoutExpired:
            end = f"stopped after {_LIMIT_S} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        seconds = round(time.monotonic() - began_s)
        return FileRun(outcomes=_outcomes(results) if results.exists() else {}, seconds=seconds, end=end)


def _outcomes(results: Path) -> dict[str, str]:
    found = {}
    for case in ElementTree.parse(results).getroot().iter("testcase"):
        tags = {child.tag for child in case}
        outcome = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        found[f"{(case.get('classname') or '').rpartition('.')[2]}.{case.get('name')}"] = outcome
    return found


def _differences(torch: FileRun, ours: FileRun) -> list[str]:
    """Return a line for each test with another outcome."""
    lines = []
    for name in sorted({*torch["outcomes"], *ours["outcomes"]}):
        theirs, own = (run["outcomes"].get(name, _MISSING) for run in (torch, ours))
        if theirs != own:
            lines.append(f"{name}: {theirs} with torch's classes, {own} with ours")
    return lines


def _row(file: str, runs: dict[str, FileRun], different: int) -> str:
    counts = list(runs["torch"]["outcomes"].values())
    parts = ", ".join(f"{counts.count(kind)} {kind}" for kind in ("passed", "skipped", "failed") if kind in counts)
    ends = ", ".join(f"{name}: {run['end']}" for name, run in runs.items() if run["end"] != "whole")
    times = f"{runs['torch']['seconds']} s | {runs['ours']['seconds']} s"
    return f"| `{file}` | {parts} | {different} | {times} |{f' {ends}' if ends else ''}"


def main() -> int:
    """Compare the files that the command line names; return 0 if all outcomes are the same, 1 if not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, required=True, metavar="FILE", help="JSON file for all outcomes")
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", nargs="+")
    given = parser.parse_args()
    if missing := [file for file in given.files if not (given.folder / file).is_file()]:
        parser.error(f"{missing[0]}: no such file below {given.folder}")
    kept: dict[str, dict[str, FileRun]] = json.loads(given.keep.read_text()) if given.keep.exists() else {}
    print("| file | with torch's classes | different | torch's classes | this library |\n|---|---|---|---|---|")
    different = []
    for file in given.files:
        runs = kept.setdefault(file, {})
        for name, flags in _FLAGS.items():
            if name not in runs:
                runs[name] = _run(given.folder, file, flags)
                given.keep.write_text(json.dumps(kept, indent=1))
        lines = _differences(runs["torch"], runs["ours"])
        different += [f"{file}::{line}" for line in lines]
        print(_row(file, runs, len(lines)), flush=True)
    print("\n".join(["", *different]))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
