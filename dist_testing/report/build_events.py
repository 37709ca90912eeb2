"""Reads what one invocation of Bazel did from its build events (`--build_event_json_file`), and finds its outputs.

Needs only the standard library, because programs that plain Python starts use it, too (`tools/ci/build_events.py`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from dist_testing.core.ground.errors import ReportError
from dist_testing.report.model import InvocationRecord, RunFiles, RunRecord, bounded
from dist_testing.report.result_xml import seconds_in, time_in

# Bazel's words for a target that has passed, the best first. A flaky target has passed after a failure.
GOOD = ("PASSED", "FLAKY")
# Bazel's words (failure_details.proto) for an action that failed because of an executor or its cache.
_INFRASTRUCTURE = ("EXECUTION_FAILED", "REMOTE_CACHE_FAILED", "REMOTE_CACHE_EVICTED")
# Bazel's words for a target that the invocation did not reach before it ended.
_NOT_REACHED = ("INCOMPLETE", "REMOTE_ENVIRONMENT_FAILURE")

# Some 100,000 targets. A larger file would take all memory.
_MAX_BYTES = 512 << 20
# With --keep_going Bazel gives the reason only in its output: the first line, and for an incompatible target the end.
_UNANALYSED = re.compile(
    r"errors encountered while analyzing target '(?P<label>[^'\n]+)', it will not be built\.\n(?P<why>[^\n]*)"
    r"(?:\nDependency chain:(?:\n ++[^\n]*?)*(?:<-- (?P<constraint>[^\n]+)))?"
)

# Length of a digest in hexadecimal -> the function that Bazel means if it gives no name.
_FUNCTIONS = {32: "md5", 40: "sha1", 64: "sha256", 96: "sha384", 128: "sha512"}
# The end of the address of an output on a remote executor: digest and size. BLAKE3 has its name before the digest;
# Bazel leaves out the names of the functions that the length tells.
_REMOTE = re.compile(r"(?:^|/)blobs/(?:(?P<function>[a-z0-9]+)/)?(?P<digest>[0-9a-f]{32,128})/(?P<size>\d+)$")


class EventsError(ReportError):
    """A file cannot be read as build events."""


@dataclass(frozen=True, slots=True)
class Attempt(RunRecord):
    """A test action, which is an attempt of one shard of one run of a target. Its cases are not read yet."""

    files: RunFiles = field(default_factory=RunFiles)  # its outputs that are on this machine
    xml_uri: str = ""  # address of its test.xml: "file:///..." or "bytestream://..."; "" if it has left none


@dataclass(frozen=True, slots=True)
class Invocation(InvocationRecord):
    """The content of the build events."""

    attempts: list[Attempt] = field(default_factory=list)  # in the order in which they ended
    summaries: dict[str, str] = field(default_factory=dict)  # target -> Bazel's last, or worst, word on it
    incompatible: Sequence[str] = ()  # targets that Bazel itself has skipped
    broken: dict[str, str] = field(default_factory=dict)  # targets that could not be built -> Bazel's message
    faulty: Sequence[str] = ()  # the broken targets that would be broken on any executor
    unknown: dict[str, str] = field(default_factory=dict)  # patterns that Bazel could not expand -> its message


def read_events(path: Path) -> list[Mapping[str, Any]]:
    """Return the events of a file, at least one.

    An incomplete last line is left out: Bazel was killed, the disk is full, or Bazel still runs.
    """
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise ValueError(f"it has {size >> 20} MiB, and at most {_MAX_BYTES >> 20} MiB are read")
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
        except (RecursionError, ValueError) as error:
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


def read_invocation(path: Path, disk_cache: Path | None = None) -> Invocation:
    """Read a file of build events, also an incomplete one; raises EventsError if it has other content.

    `disk_cache` may have the outputs that are not at their places; by default it is the one that Bazel has used.
    """
    events = read_events(path)
    try:
        return _summed_up(path, events, disk_cache)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise EventsError(
            f"{path}: no results: an event does not have Bazel's form ({type(error).__name__}: {error}).\n"
            "Another tool has written or changed the file.\n"
            "Name the file that Bazel wrote for --build_event_json_file."
        ) from error


def _summed_up(path: Path, events: Sequence[Mapping[str, Any]], disk_cache: Path | None) -> Invocation:
    used = [_option(event, "--disk_cache=") for event in events if "optionsParsed" in event]
    testlogs = _OutputFinder(disk_cache or (Path(used[-1]).expanduser() if used and used[-1] else None))
    found = Invocation(str(path))
    incompatible: set[str] = set()
    faulty: set[str] = set()
    unanalysed = _unanalysed(events)
    facts: dict[str, Any] = {"command": "bazel test"}
    workspace: dict[str, str] = {}
    ended_s: float | None = None

    for event in events:
        identity = event["id"]
        testlogs.note(event)
        if "testResult" in event and "testResult" in identity:
            found.attempts.append(_attempt(identity["testResult"], event["testResult"], testlogs))
        elif "testSummary" in event and "testSummary" in identity:
            label = str(identity["testSummary"]["label"])
            status = str(event["testSummary"].get("overallStatus", "NO_STATUS"))
            words = (found.summaries.get(label, status), status)
            found.summaries[label] = max(words, key=lambda word: (word not in GOOD, word != GOOD[0]))
        elif "targetCompleted" in identity:
            label = str(identity["targetCompleted"]["label"])
            if event.get("aborted", {}).get("reason") == "SKIPPED":
                incompatible.add(label)
            elif "aborted" in event:
                reason = event["aborted"].get("reason", "")
                found.broken[label] = str(event["aborted"].get("description") or unanalysed.get(label) or reason)
                if reason not in _NOT_REACHED:
                    faulty.add(label)
            elif not event.get("completed", {}).get("success"):
                detail = event.get("completed", {}).get("failureDetail", {})
                found.broken[label] = str(detail.get("message", ""))
                if detail.get("spawn", {}).get("code") not in _INFRASTRUCTURE:
                    faulty.add(label)
        elif "aborted" in event and ("pattern" in identity or "patternSkipped" in identity):
            named = identity.get("pattern") or identity["patternSkipped"]
            found.unknown[" ".join(map(str, named.get("pattern", [])))] = str(event["aborted"].get("description", ""))
        elif started := event.get("started"):
            facts["identifier"] = str(started.get("uuid", ""))
            facts["command"] = f"bazel {started.get('command') or 'test'}"
            facts["version"] = str(started.get("buildToolVersion", ""))
            facts["began_wall_s"] = time_in(started.get("startTime", ""))
        elif "finished" in event:
            ended_s = time_in(event["finished"].get("finishTime", ""))
            exit_code = event["finished"].get("exitCode", {})
            facts["exit_code"] = int(exit_code.get("code", 0))
            facts["exit_name"] = str(exit_code.get("name", ""))
        elif "workspaceStatus" in event:
            items = event["workspaceStatus"].get("item", [])
            workspace |= {str(item.get("key", "")): str(item.get("value", "")) for item in items}
        elif "optionsParsed" in event:
            facts["test_filter"] = _option(event, "--test_filter=")
    if ended_s is not None and (began_s := facts.get("began_wall_s")) is not None:
        facts["duration_s"] = bounded(ended_s - began_s)
    return replace(
        found,
        is_complete=is_whole(events),
        incompatible=sorted(incompatible),
        faulty=sorted(faulty),
        revision=_revision(workspace),
        **facts,
    )


def _revision(workspace: Mapping[str, str]) -> str:
    """Return the revision of the sources by the workspace status, if they were clean; "" if that is unknown."""
    # Bazel's own names have no prefix; many workspaces print stable ones.
    names = ("STABLE_GIT_COMMIT", "BUILD_SCM_REVISION", "STABLE_SCM_REVISION")
    revision = next(filter(None, map(workspace.get, names)), "")
    state = workspace.get("BUILD_SCM_STATUS") or workspace.get("STABLE_SCM_STATUS", "Clean")
    return revision if state.lower() == "clean" else ""


def _unanalysed(events: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return targets that could not be analysed, as far as Bazel's output names them -> why."""
    found: dict[str, str] = {}
    for event in events:
        for match in _UNANALYSED.finditer(str(event.get("progress", {}).get("stderr", ""))):
            found[match["label"]] = ": ".join(filter(None, (match["why"].strip().rstrip("."), match["constraint"])))
    return found


def _option(event: Mapping[str, Any], start: str) -> str:
    parsed = event["optionsParsed"]
    for text in reversed([*parsed.get("explicitCmdLine", []), *parsed.get("cmdLine", [])]):
        if str(text).startswith(start):
            return str(text).removeprefix(start)
    return ""


def _attempt(identity: Mapping[str, Any], result: Mapping[str, Any], testlogs: _OutputFinder) -> Attempt:
    execution = result.get("executionInfo", {})
    cached = "local" if result.get("cachedLocally") else "remote" if execution.get("cachedRemotely") else ""
    uris = {str(output.get("name", "")): str(output.get("uri", "")) for output in result.get("testActionOutput", [])}
    paths = {name: path for name, uri in uris.items() if (path := testlogs.find(identity, uri)) is not None}
    xml = paths.get("test.xml")
    # Files beside the test.xml of the last attempt; those of earlier attempts have names of their own.
    folder = xml.parent / "test.outputs" if xml is not None and xml.name == "test.xml" else None
    archive = next((path for path in paths.values() if path.suffix == ".zip"), None)
    return Attempt(
        target=str(identity["label"]),
        configuration=str(identity.get("configuration", {}).get("id", "")),
        shard=int(identity.get("shard", 1)),
        run=int(identity.get("run", 1)),
        attempt=int(identity.get("attempt", 1)),
        status=str(result.get("status", "NO_STATUS")),
        cached=cached,
        strategy="" if cached else str(execution.get("strategy", "")),
        host=str(execution.get("hostname", "")),
        began_wall_s=time_in(result.get("testAttemptStart", "")),
        duration_s=seconds_in(str(result.get("testAttemptDuration", "")).removesuffix("s")),
        has_results=False,
        files=RunFiles(xml, (), archive, folder, paths.get("test.log")),
        xml_uri=uris.get("test.xml", ""),
    )


class _OutputFinder:
    def __init__(self, disk_cache: Path | None) -> None:
        self._exec_root: Path | None = None
        self._disk_cache = disk_cache
        # Configuration -> the folder of its outputs.
        self._folders: dict[str, str] = {}
        # Folder of a target -> its files with their sizes.
        self._listed: dict[Path, list[tuple[Path, int]]] = {}

    def note(self, event: Mapping[str, Any]) -> None:
        """Learn from an event where the outputs are."""
        if root := event.get("workspaceInfo", {}).get("localExecRoot"):
            self._exec_root = Path(str(root))
        if "configuration" in event and "configuration" in event["id"]:
            self._folders[event["id"]["configuration"]["id"]] = event["configuration"].get("mnemonic", "")

    def find(self, identity: Mapping[str, Any], uri: str) -> Path | None:
        """Return the file of an address; None if it is not on this machine."""
        try:
            if uri.startswith("file:"):
                path = Path(unquote(urlsplit(uri).path))
                return path if path.exists() else None
            remote = _REMOTE.search(urlsplit(uri).path)
            return None if remote is None else self._find_remote(identity, remote)
        except (OSError, ValueError):
            # Not a path that this machine can have: too long, or with a null character.
            return None

    def _find_remote(self, identity: Mapping[str, Any], remote: re.Match[str]) -> Path | None:
        digest, size = remote["digest"], int(remote["size"])
        function = remote["function"] or _FUNCTIONS.get(len(digest), "")
        places = self._places(identity, size)
        if self._disk_cache is not None:
            root = self._disk_cache if function == "sha256" else self._disk_cache / function
            places.append(root / "cas" / digest[:2] / digest)
        for path in places:
            if path.is_file() and path.stat().st_size == size and _digest_of(path, function) in (digest, None):
                return path
        return None

    def _places(self, identity: Mapping[str, Any], size: int) -> list[Path]:
        """Return the files of the target with this size.

        The address names the copy on the executor, although Bazel may have fetched the file. A file here may also be
        from an earlier run; the digest tells.
        """
        mnemonic = self._folders.get(identity.get("configuration", {}).get("id", ""))
        if self._exec_root is None or not mnemonic:
            return []
        repository, _, rest = str(identity["label"]).rpartition("//")
        place = self._exec_root / "bazel-out" / mnemonic / "testlogs"
        if name := repository.lstrip("@"):
            place = place / "external" / name
        package, _, target = rest.partition(":")
        folder = place / package / target
        if folder not in self._listed:
            self._listed[folder] = [(path, path.stat().st_size) for path in folder.rglob("*") if path.is_file()]
        return [path for path, length in self._listed[folder] if length == size]


def _digest_of(path: Path, function: str) -> str | None:
    """Return the digest of a file in hexadecimal; None if Python lacks the function, as it lacks BLAKE3."""
    if function not in _FUNCTIONS.values():
        return None
    with path.open("rb") as file:
        # MD5 and SHA-1 only find files here.
        return hashlib.file_digest(file, lambda: hashlib.new(function, usedforsecurity=False)).hexdigest()
