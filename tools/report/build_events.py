"""Reads what one invocation of Bazel did from its build events (`--build_event_json_file`).

Needs only the standard library, because programs that Bazel does not start use it, too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

__all__ = ["GOOD", "Attempt", "EventsError", "Invocation", "is_whole", "read_events", "read_invocation"]

# Bazel's words for a target that has passed, the best first. A flaky target has passed after a failure.
GOOD = ("PASSED", "FLAKY")
# Bazel's words (failure_details.proto) for an action that failed because of an executor or its cache.
_INFRASTRUCTURE = ("EXECUTION_FAILED", "REMOTE_CACHE_FAILED", "REMOTE_CACHE_EVICTED")
# Bazel's words for a target that the invocation did not reach before it ended.
_NOT_REACHED = ("INCOMPLETE", "REMOTE_ENVIRONMENT_FAILURE")

# The end of the address of an output on a remote executor: SHA-256 and size. Other digests have their name before it.
_REMOTE = re.compile(r"(?:^|/)blobs/(?P<sha256>[0-9a-f]{64})/(?P<size>\d+)$")
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)s")


class EventsError(ValueError):
    """A file cannot be read as build events. The text has three lines for the user."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One test action: an attempt of one shard of one run of a target.

    Attributes:
        target: Its label.
        configuration: Bazel's name of the configuration. One invocation may test a label in several.
        shard: From 1.
        run: From 1.
        number: From 1; greater than 1 if a failed test was repeated.
        status: Bazel's word: PASSED, FAILED, TIMEOUT, INCOMPLETE, REMOTE_FAILURE, ...
        cached: Origin of the result: "local", "remote", or "" if the test ran.
        strategy: Where the test ran: "remote", "linux-sandbox", ...; "" if it did not run.
        duration_s: Duration of the test in seconds, also if the result is from a cache.
        xml: Its test.xml; None if it is not on this machine.
    """

    target: str
    configuration: str
    shard: int
    run: int
    number: int
    status: str
    cached: str
    strategy: str
    duration_s: float
    xml: Path | None


@dataclass(frozen=True, slots=True)
class Invocation:
    """The content of the build events.

    Attributes:
        attempts: In the order in which they ended.
        summaries: Selected target -> Bazel's last word on it; of several configurations, the worst.
        incompatible: Targets that Bazel itself has skipped.
        broken: Targets that could not be analysed or built -> Bazel's message.
        faulty: The broken targets that would be broken on any executor.
        exit_code: Bazel's exit status; None if Bazel ended before it wrote it.
        exit_name: Bazel's name of the status.
        is_complete: Whether the file has the last event.
    """

    attempts: Sequence[Attempt]
    summaries: Mapping[str, str]
    incompatible: Sequence[str]
    broken: Mapping[str, str]
    faulty: Sequence[str]
    exit_code: int | None
    exit_name: str
    is_complete: bool


def read_events(path: Path) -> list[Mapping[str, Any]]:
    """Return the events of a file, at least one.

    An incomplete last line is left out: Bazel was killed, the disk is full, or Bazel still runs.

    Raises:
        EventsError: If the file cannot be read or has other content.
    """
    try:
        return _parse(path.read_bytes())
    except (OSError, ValueError) as error:
        raise EventsError(
            f"{path}: no results: this is not a file of build events: {error}.\n"
            "Bazel writes such a file on request, and completes it when it ends.\n"
            "Run `bazel test --build_event_json_file=FILE` to its end, and name that file."
        ) from error


def _parse(content: bytes) -> list[Mapping[str, Any]]:
    # Not splitlines(): it also splits at characters that JSON allows inside strings.
    lines = content.split(b"\n")
    events: list[Mapping[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            event = json.loads(line.decode("utf-8"))
        except ValueError as error:
            if events and number == len(lines):
                break
            raise ValueError(f"line {number}: {error}") from error
        if not isinstance(event, dict) or not isinstance(event.get("id"), dict):
            raise ValueError(f"line {number} is JSON, but not a build event")
        events.append(event)
    if not events:
        raise ValueError("it is empty")
    return events


def is_whole(events: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether the last event is among them. If not, Bazel was killed or could not write it."""
    return any(event.get("lastMessage") is True for event in events)


def read_invocation(path: Path) -> Invocation:
    """Read a file of build events, also an incomplete one.

    Raises:
        EventsError: If the file cannot be read or has other content.
    """
    events = read_events(path)
    try:
        return _summed_up(events)
    except (AttributeError, KeyError, TypeError) as error:
        raise EventsError(
            f"{path}: no results: an event does not have Bazel's form ({type(error).__name__}: {error}).\n"
            "Another tool has written or changed the file.\n"
            "Name the file that Bazel wrote for --build_event_json_file."
        ) from error


def _summed_up(events: Sequence[Mapping[str, Any]]) -> Invocation:
    testlogs = _Testlogs()
    attempts: list[Attempt] = []
    summaries: dict[str, str] = {}
    incompatible: set[str] = set()
    broken: dict[str, str] = {}
    faulty: set[str] = set()
    exit_code: int | None = None
    exit_name = ""
    for event in events:
        identity = event["id"]
        testlogs.note(event)
        if "testResult" in event and "testResult" in identity:
            attempts.append(_attempt(identity["testResult"], event["testResult"], testlogs))
        elif "testSummary" in event and "testSummary" in identity:
            label = identity["testSummary"]["label"]
            status = event["testSummary"].get("overallStatus", "NO_STATUS")
            summaries[label] = max(summaries.get(label, status), status, key=_badness)
        elif "targetCompleted" in identity:
            label = identity["targetCompleted"]["label"]
            if event.get("aborted", {}).get("reason") == "SKIPPED":
                incompatible.add(label)
            elif "aborted" in event:
                reason = event["aborted"].get("reason", "")
                broken[label] = event["aborted"].get("description") or reason
                if reason not in _NOT_REACHED:
                    faulty.add(label)
            elif not event.get("completed", {}).get("success"):
                detail = event.get("completed", {}).get("failureDetail", {})
                broken[label] = detail.get("message", "")
                if detail.get("spawn", {}).get("code") not in _INFRASTRUCTURE:
                    faulty.add(label)
        elif "finished" in event:
            exit_code = event["finished"].get("exitCode", {}).get("code", 0)
            exit_name = event["finished"].get("exitCode", {}).get("name", "")
    return Invocation(
        attempts, summaries, sorted(incompatible), broken, sorted(faulty), exit_code, exit_name, is_whole(events)
    )


def _badness(status: str) -> int:
    return GOOD.index(status) if status in GOOD else len(GOOD)


def _attempt(identity: Mapping[str, Any], result: Mapping[str, Any], testlogs: _Testlogs) -> Attempt:
    execution = result.get("executionInfo", {})
    cached = "local" if result.get("cachedLocally") else "remote" if execution.get("cachedRemotely") else ""
    outputs = result.get("testActionOutput", [])
    uri = next((output.get("uri", "") for output in outputs if output.get("name") == "test.xml"), "")
    duration = _SECONDS.fullmatch(result.get("testAttemptDuration", ""))
    milliseconds = int(result.get("testAttemptDurationMillis", 0))
    return Attempt(
        target=identity["label"],
        configuration=identity.get("configuration", {}).get("id", ""),
        shard=int(identity.get("shard", 1)),
        run=int(identity.get("run", 1)),
        number=int(identity.get("attempt", 1)),
        status=result.get("status", "NO_STATUS"),
        cached=cached,
        strategy="" if cached else execution.get("strategy", ""),
        duration_s=float(duration[1]) if duration else milliseconds / 1000,
        xml=testlogs.find(identity, uri),
    )


class _Testlogs:
    """Finds the outputs of tests on this machine."""

    def __init__(self) -> None:
        self._exec_root: Path | None = None
        # Configuration -> the folder of its outputs.
        self._folders: dict[str, str] = {}

    def note(self, event: Mapping[str, Any]) -> None:
        """Learn from an event where the outputs are."""
        if root := event.get("workspaceInfo", {}).get("localExecRoot"):
            self._exec_root = Path(str(root))
        if "configuration" in event and "configuration" in event["id"]:
            self._folders[event["id"]["configuration"]["id"]] = event["configuration"].get("mnemonic", "")

    def find(self, identity: Mapping[str, Any], uri: str) -> Path | None:
        """Return the file of an address; None if it is not on this machine."""
        if uri.startswith("file:"):
            path = Path(unquote(urlsplit(uri).path))
            return path if path.exists() else None
        remote = _REMOTE.search(urlsplit(uri).path)
        mnemonic = self._folders.get(identity.get("configuration", {}).get("id", ""))
        if remote is None or self._exec_root is None or not mnemonic:
            return None
        # The address names the copy on the executor, although Bazel may have fetched the file. A file here may also be
        # from an earlier run; the digest tells.
        repository, _, rest = str(identity["label"]).rpartition("//")
        place = self._exec_root / "bazel-out" / mnemonic / "testlogs"
        if name := repository.lstrip("@"):
            place = place / "external" / name
        package, _, target = rest.partition(":")
        for path in (place / package / target).rglob("*.xml"):
            if path.stat().st_size == int(remote["size"]):
                content = path.read_bytes()
                if hashlib.sha256(content).hexdigest() == remote["sha256"]:
                    return path
        return None
