"""Everything about one pool in one table: `bazel run //tools/rbe/pool_check:table -- [--check=LABEL] BAZEL-OPTIONS`.

A test that looks around on a worker cannot see what comes back from it, what happens when it runs out of time, what
runs beside it, and what is still there after it. This runs several tests and compares what they tell.

Exit status: 0, 1 if the pool lacks something that the library relies on, 2 if Bazel could not run the tests.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from finding import Finding, table

# How long a test of these may run. Longer than those take that end, short for the one that does not. Seconds.
_TIMEOUT_S = 20
# Bazel: a test failed, or ran out of time. One of them always does.
_BUILT = (0, 3)


class TableError(Exception):
    """The tests could not be run; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What came back of one run of one test.

    Attributes:
        name: Name of the target, without its package.
        status: As Bazel calls it.
        files: The outputs that are on this machine, by Bazel's names.
    """

    name: str
    status: str
    files: dict[str, Path] = field(default_factory=dict)

    @property
    def log(self) -> str:
        """The text of its log; empty if that did not come back."""
        file = self.files.get("test.log")
        return file.read_text(encoding="utf-8", errors="replace") if file is not None else ""


def read_events(lines: Sequence[str]) -> list[Seen]:
    """Return what Bazel's build events say about tests."""
    seen = []
    for line in lines:
        event: dict[str, Any] = json.loads(line)
        label = event.get("id", {}).get("testResult", {}).get("label")
        if label and "testResult" in event:
            files = {}
            for output in event["testResult"].get("testActionOutput", []):
                place = urlsplit(output.get("uri", ""))
                path = Path(unquote(place.path))
                if place.scheme == "file" and path.exists():
                    files[output["name"]] = path
            seen.append(Seen(label.rpartition(":")[2], event["testResult"].get("status", "NO_STATUS"), files))
    return seen


def findings(name: str, seen: Sequence[Seen]) -> Iterator[Finding]:
    """Say what the pool is like.

    Args:
        name: Name of the target that looks around; the others' names begin with it.
        seen: What came back of all of them.
    """

    def of(what: str) -> list[Seen]:
        return [one for one in seen if one.name == f"{name}.{what}"]

    inside = [one for one in seen if one.name == name]
    yield from _what_came_back(inside[0] if inside else Seen(name, "NO_STATUS"))
    yield _concurrency(of("spread"))
    yield _timeout(of("grace"))
    yield _clean_up(of("leave"), of("look"))


def _what_came_back(inside: Seen) -> Iterator[Finding]:
    files = {"pool.json": b""}
    for output, path in inside.files.items():
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                files.update({entry: archive.read(entry) for entry in archive.namelist() if entry == "pool.json"})
        elif output.endswith("pool.json"):
            files["pool.json"] = path.read_bytes()
    try:
        yield from (Finding(**one) for one in json.loads(files["pool.json"]))
        yield Finding("undeclared outputs back", "ok", "pool.json came back")
    except ValueError:
        yield Finding("undeclared outputs back", "FAILED", f"pool.json did not come back ({inside.status})")
    xml = inside.files.get("test.xml")
    has_cases = xml is not None and b"loopback network" in xml.read_bytes()
    yield Finding("test.xml back", "ok" if has_cases else "FAILED", "as written" if has_cases else "not as written")
    yield Finding("test.log back", "ok" if inside.log else "FAILED", f"{len(inside.log)} characters")


def _told(runs: Sequence[Seen]) -> list[dict[str, Any]]:
    """Return what tests have told in their logs, a JSON object on a line."""
    lines = (line for run in runs for line in run.log.splitlines())
    return [json.loads(line) for line in lines if line.startswith("{")]


def _concurrency(runs: Sequence[Seen]) -> Finding:
    spans = _told(runs)
    if not spans:
        return Finding("concurrency", "note", "not seen: no shard came back")
    most = max(sum(other["start"] <= one["start"] < other["end"] for other in spans) for one in spans)
    workers = ", ".join(sorted({span["worker"] for span in spans}))
    return Finding("concurrency", "ok", f"{most} of {len(spans)} shards ran at once, on {workers}")


def _timeout(runs: Sequence[Seen]) -> Finding:
    run = runs[0] if runs else Seen("", "NO_STATUS")
    if run.status != "TIMEOUT":
        return Finding("timeout", "FAILED", f"a test that does not end is {run.status}, and TIMEOUT is expected")
    if "grace: SIGTERM" not in run.log:
        return Finding("timeout", "note", "no SIGTERM was seen: what a test writes at its end is lost")
    beats = run.log.count("grace: still running")
    return Finding("timeout", "ok", f"SIGTERM, and at least {beats} s until SIGKILL")


def _clean_up(left: Sequence[Seen], looked: Sequence[Seen]) -> Finding:
    leavers = {one["worker"] for one in _told(left)}
    lookers = [one for one in _told(looked) if one["worker"] in leavers]
    if not lookers:
        return Finding("process clean-up", "note", "not seen: no worker got both tests")
    found = sum(one["found"] for one in lookers)
    if found:
        return Finding("process clean-up", "note", f"{found} process(es) were there after their tests; ours leave none")
    return Finding("process clean-up", "ok", "what a test leaves behind is ended")


def run_tests(label: str, options: Sequence[str]) -> list[Seen]:
    """Run all tests of one pool.

    Raises:
        TableError: If Bazel cannot build or run them.
    """
    first = [label, *(f"{label}.{what}" for what in ("spread", "leave", "grace"))]
    return [*_bazel_test(first, options), *_bazel_test([f"{label}.look"], options)]


def _bazel_test(labels: Sequence[str], options: Sequence[str]) -> list[Seen]:
    workspace = Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY", "."))
    wrapper = workspace / "bazelw"
    bazel = str(wrapper) if os.access(wrapper, os.X_OK) else shutil.which("bazel") or "bazelisk"
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "events"
        command = [bazel, "test", *options, f"--build_event_json_file={events}", f"--test_timeout={_TIMEOUT_S}"]
        # Else the events name files by their place on the executor, although they were fetched.
        command += ["--experimental_build_event_upload_strategy=local"]
        command += ["--remote_download_outputs=all", "--test_output=summary", "--keep_going", *labels]
        try:
            done = subprocess.run(command, cwd=workspace, stdout=sys.stderr, check=False)
        except OSError as error:
            raise TableError(
                f"{bazel}: {error.strerror}.\nBazel runs the tests.\nPut it on PATH, or start this by `bazel run`."
            ) from error
        if done.returncode not in _BUILT:
            raise TableError(
                f"Bazel ended with status {done.returncode}.\nIts own words are above: the executor may be "
                "unreachable, or no worker of the pool may be there.\nRemedy what it names."
            )
        return read_events(events.read_text(encoding="utf-8").splitlines())


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table of one pool."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--check",
        default="@dist_testing//tools/rbe/pool_check:pool_check",
        help="target of the macro pool_check (default: ours)",
    )
    options, rest = parser.parse_known_args(arguments)
    if ":" not in options.check:
        parser.error(f"--check '{options.check}': a label with a colon is expected, //package:name")
    try:
        found = list(findings(options.check.rpartition(":")[2], run_tests(options.check, rest)))
    except TableError as error:
        sys.stderr.write(f"pool_check: {error}\n")
        return 2
    sys.stdout.write(table(found))
    return int(any(one.verdict == "FAILED" for one in found))


if __name__ == "__main__":
    sys.exit(main())
