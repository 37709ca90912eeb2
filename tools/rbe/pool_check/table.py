"""Prints all facts about one pool: `bazel run //tools/rbe/pool_check:table -- [--check=LABEL] OPTIONS-OF-BAZEL`.

A test on a worker cannot see which of its outputs come back, what happens at its timeout, which actions run beside it,
and what it leaves behind. So this program runs several tests and compares their reports.

Exit status: 0, 1 if the pool lacks a feature that the library needs, 2 if Bazel could not run the tests.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from build_events import EventsError, read_events
from finding import Finding, table

# Timeout of these tests: enough for those that end, short for the one that does not end. Seconds.
_TIMEOUT_S = 20
# Limit for one run of Bazel, with all that it builds and fetches. A test without a worker in its pool waits for ever,
# and none of Bazel's timeouts counts that time. Seconds.
_LIMIT_S = 600.0
# How long to wait for a test that no worker should take, after another test has run. Seconds.
_NO_WORKER_S = 10.0
# Time between two looks at Bazel's events. Seconds.
_POLL_S = 0.25
# Limit for Bazel to end after an interrupt. Seconds.
_INTERRUPT_S = 30.0
# Bazel's exit statuses: success, or a failed test. One of these tests always fails.
_BUILT = (0, 3)


class TableError(Exception):
    """The tests could not be run; the text says why, and gives a way out."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The outputs of one run of one test.

    Attributes:
        name: Name of the target, without its package.
        status: Bazel's word for it; "CONFIGURED" for a test without any result.
        files: Bazel's names of the outputs -> the files on this machine.
        strategy: How it ran: "remote", or a local strategy; empty if that is unknown.
    """

    name: str
    status: str
    files: dict[str, Path] = field(default_factory=dict)
    strategy: str = ""

    @property
    def log(self) -> str:
        """The text of its log; empty if the log did not come back."""
        file = self.files.get("test.log")
        return file.read_text(encoding="utf-8", errors="replace") if file is not None else ""


def seen_in(events: Iterable[Mapping[str, Any]]) -> list[Seen]:
    """Return what Bazel's build events report about tests."""
    seen = []
    for event in events:
        if label := event["id"].get("targetConfigured", {}).get("label"):
            seen.append(Seen(_name(label), "CONFIGURED"))
        label = event["id"].get("testResult", {}).get("label")
        if label and "testResult" in event:
            files = {}
            for output in event["testResult"].get("testActionOutput", []):
                place = urlsplit(output.get("uri", ""))
                path = Path(unquote(place.path))
                if place.scheme == "file" and path.exists():
                    files[output["name"]] = path
            result = event["testResult"]
            strategy = result.get("executionInfo", {}).get("strategy", "")
            seen.append(Seen(_name(label), result.get("status", "NO_STATUS"), files, strategy))
    return seen


def findings(name: str, seen: Sequence[Seen]) -> Iterator[Finding]:
    """Yield the facts about the pool.

    Args:
        name: Name of the target that examines the worker; the others' names begin with it.
        seen: The outputs of all tests.
    """

    def of(what: str) -> list[Seen]:
        return [one for one in seen if one.name == f"{name}.{what}" and one.status != "CONFIGURED"]

    inside = [one for one in seen if one.name == name and one.status != "CONFIGURED"]
    yield from _what_came_back(inside[0] if inside else Seen(name, "NO_STATUS"))
    yield _concurrency(of("spread"))
    yield _timeout(of("grace"))
    yield _clean_up(of("leave"), of("look"))
    no_worker = f"{name}.no_worker."
    for target in sorted({one.name for one in seen if one.name.startswith(no_worker)}):
        yield _property(target.removeprefix(no_worker), [one for one in seen if one.name == target])


def _what_came_back(inside: Seen) -> Iterator[Finding]:
    try:
        yield from [Finding(**one) for one in json.loads(_pool_json(inside))]
        yield Finding("undeclared outputs back", "ok", "pool.json came back")
    # The executor may have cut or mixed up the file: no archive, no JSON, or JSON of another form.
    except (zipfile.BadZipFile, ValueError, TypeError) as error:
        text = f"pool.json did not come back ({inside.status}; {type(error).__name__}: {error})"
        yield Finding("undeclared outputs back", "FAILED", text)
    xml = inside.files.get("test.xml")
    has_cases = xml is not None and b"loopback network" in xml.read_bytes()
    yield Finding("test.xml back", "ok" if has_cases else "FAILED", "as written" if has_cases else "not as written")
    yield Finding("test.log back", "ok" if inside.log else "FAILED", f"{len(inside.log)} characters")


def _pool_json(inside: Seen) -> bytes:
    content = b""
    for output, path in inside.files.items():
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                content = archive.read("pool.json") if "pool.json" in archive.namelist() else content
        elif output.endswith("pool.json"):
            content = path.read_bytes()
    return content


def _told(runs: Sequence[Seen], *keys: str) -> list[dict[str, Any]]:
    """Return the reports in the logs of tests: JSON objects with `keys`, one per line. Other lines are ignored."""
    told = []
    for line in (line for run in runs for line in run.log.split("\n")):
        with contextlib.suppress(ValueError):
            one = json.loads(line)
            if isinstance(one, dict) and one.keys() >= set(keys):
                told.append(one)
    return told


def _property(key: str, runs: Sequence[Seen]) -> Finding:
    """Check that the executor uses a property, by a test whose value no worker has."""
    name = f"property {key}"
    ran = [run for run in runs if run.status == "PASSED"]
    if not ran:
        return Finding(name, "ok", "a test whose value no worker has did not run, and others did")
    if any(run.strategy not in ("", "remote") for run in ran):
        return Finding(name, "note", "unknown: the test ran on this machine")
    workers = ", ".join(sorted({one["worker"] for one in _told(ran, "worker")}))
    return Finding(name, "FAILED", f"a test whose value no worker has ran on {workers}: the executor ignores the value")


def _concurrency(runs: Sequence[Seen]) -> Finding:
    spans = _told(runs, "start", "end", "worker")
    if not spans:
        return Finding("concurrency", "note", "unknown: no shard came back")
    most = max(sum(other["start"] <= one["start"] < other["end"] for other in spans) for one in spans)
    workers = ", ".join(sorted({span["worker"] for span in spans}))
    return Finding("concurrency", "ok", f"{most} of {len(spans)} shards ran at once, on {workers}")


def _timeout(runs: Sequence[Seen]) -> Finding:
    run = runs[0] if runs else Seen("", "NO_STATUS")
    if run.status != "TIMEOUT":
        return Finding("timeout", "FAILED", f"a test that does not end is {run.status}, but TIMEOUT is expected")
    if "grace: SIGTERM" not in run.log:
        return Finding("timeout", "note", "the test got no SIGTERM: output that it writes at its end is lost")
    beats = run.log.count("grace: still running")
    return Finding("timeout", "ok", f"SIGTERM, and at least {beats} s until SIGKILL")


def _clean_up(left: Sequence[Seen], looked: Sequence[Seen]) -> Finding:
    leavers = {one["worker"] for one in _told(left, "worker")}
    lookers = [one for one in _told(looked, "worker", "found") if one["worker"] in leavers]
    if not lookers:
        return Finding("process clean-up", "note", "unknown: no worker got both tests")
    found = sum(one["found"] for one in lookers)
    if found:
        return Finding(
            "process clean-up", "note", f"{found} process(es) outlived their tests; the library's tests leave none"
        )
    return Finding("process clean-up", "ok", "processes that a test leaves behind are ended")


def run_tests(label: str, options: Sequence[str], limit_s: float) -> list[Seen]:
    """Run all tests of one pool.

    Raises:
        TableError: If Bazel cannot build or run them, or they do not end in time.
    """
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "events"
        first = [label, *(f"{label}.{what}" for what in ("spread", "leave", "grace"))]
        status = _bazel_test(first, options, events, limit_s, lambda: False)
        if status not in _BUILT:
            raise _not_run(status)
        seen = seen_in(read_events(events))
        events.unlink()
        # To prove that no worker takes a test, wait until another test of the same run has ended, and a while longer.
        other = f"{label}.look"
        status = _bazel_test([other, f"{label}.no_worker"], options, events, limit_s, _Offered(events, other))
        second = seen_in(_events_so_far(events))
        if not any(one.name == _name(other) and one.status != "CONFIGURED" for one in second):
            raise _not_run(status)
        return [*seen, *second]


class _Offered:
    """Returns whether the test that no worker should take has waited long enough.

    Args:
        events: Bazel's build events.
        other: A test of the same run that a worker takes.
    """

    def __init__(self, events: Path, other: str) -> None:
        self._events = events
        self._other = _name(other)
        self._since: float | None = None

    def __call__(self) -> bool:
        if self._since is None:
            ended = (event["id"].get("testSummary", {}).get("label", "") for event in _events_so_far(self._events))
            if self._other in map(_name, ended):
                self._since = time.monotonic()
        return self._since is not None and time.monotonic() - self._since >= _NO_WORKER_S


def _name(label: str) -> str:
    return label.rpartition(":")[2]


def _events_so_far(file: Path) -> Sequence[Mapping[str, Any]]:
    try:
        return read_events(file)
    except EventsError:
        # Bazel has not written a line yet, or could not start.
        return []


def _not_run(status: int) -> TableError:
    return TableError(
        f"Bazel ended with status {status}.\nIts messages are above: the executor may be unreachable, or no "
        "worker of the pool may be running.\nRemedy the cause that they name."
    )


def _bazel_test(
    labels: Sequence[str], options: Sequence[str], events: Path, limit_s: float, is_enough: Callable[[], bool]
) -> int:
    """Run Bazel until it ends or `is_enough` returns True; return its exit status."""
    workspace = Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY", "."))
    wrapper = workspace / "bazelw"
    bazel = str(wrapper) if os.access(wrapper, os.X_OK) else shutil.which("bazel") or "bazelisk"
    command = [bazel, "test", *options, f"--build_event_json_file={events}", f"--test_timeout={_TIMEOUT_S}"]
    # Without it, the events name files by their address on the executor, although Bazel fetched them.
    command += ["--experimental_build_event_upload_strategy=local"]
    command += ["--remote_download_outputs=all", "--test_output=summary", "--keep_going", *labels]
    until = time.monotonic() + limit_s
    try:
        process = subprocess.Popen(command, cwd=workspace, stdout=sys.stderr)
    except OSError as error:
        raise TableError(
            f"{bazel}: {error.strerror}.\nBazel runs the tests.\nPut it on PATH, or start this by `bazel run`."
        ) from error
    with process:
        while not is_enough():
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_POLL_S)
            if time.monotonic() > until:
                _interrupt(process)
                raise TableError(
                    f"the pool of {labels[0]}: its tests have not ended within {limit_s:.0f} s.\n"
                    "Either the pool has no worker, so that they wait for ever, or all its workers are busy.\n"
                    "Look at the executor's queue for the properties that they require; --limit=SECONDS waits longer."
                )
        return _interrupt(process)


def _interrupt(process: subprocess.Popen[bytes]) -> int:
    # Like Ctrl-C: Bazel cancels its actions on the executor.
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(_INTERRUPT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _seconds(text: str) -> float:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds")
    return float(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table of one pool."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--check",
        default="@dist_testing//tools/rbe/pool_check:pool_check",
        help="target of the macro pool_check (default: ours)",
    )
    parser.add_argument(
        "--limit",
        type=_seconds,
        default=_LIMIT_S,
        metavar="SECONDS",
        help=f"limit for each of Bazel's two runs, in seconds (default: {_LIMIT_S:.0f})",
    )
    options, rest = parser.parse_known_args(arguments)
    if ":" not in options.check:
        parser.error(f"--check '{options.check}': give a label with a colon, such as //package:name")
    try:
        found = list(findings(_name(options.check), run_tests(options.check, rest, options.limit)))
    except (EventsError, TableError) as error:
        sys.stderr.write(f"pool_check: {error}\n")
        return 2
    sys.stdout.write(table(found))
    return int(any(one.verdict == "FAILED" for one in found))


if __name__ == "__main__":
    sys.exit(main())
