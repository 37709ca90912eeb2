"""Events about a run and its tests, which the front end emits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dist_testing.core.events.event import Event


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
    """The run begins. This is the first event.

    Attributes:
        schema: Version of the format: `SCHEMA`.
        wall_zero_s: The wall clock, in seconds since 1970, when the monotonic clock was 0.
        target: Label of the Bazel target; "" outside Bazel.
        backend: Name of the backend.
        versions: Name to version, of Python, torch and pytest.
        host: Name of the machine; "" in files of older versions.
    """

    kind: ClassVar[str] = "run_started"

    schema: int
    wall_zero_s: float
    target: str
    backend: str
    versions: dict[str, str]
    host: str = ""


@dataclass(frozen=True, slots=True)
class TestsCollected(Event):
    """The front end has collected its tests and will run `count` of them."""

    __test__: ClassVar[bool] = False
    kind: ClassVar[str] = "tests_collected"

    count: int


@dataclass(frozen=True, slots=True)
class ForkServerMemory(Event):
    """The fork server has moved its memory to huge pages, or does not do it; told when the next world is asked for.

    Attributes:
        huge_bytes: Its memory in huge pages; 0 if it has moved nothing.
        pss_bytes: Its share of all memory that it uses, pages of libraries included; 0 if it has moved nothing.
        work_s: Time of the work, in seconds. The fork server does it while it waits for the runner.
        refusal: Why it does not move more; "" if it has moved all.
    """

    kind: ClassVar[str] = "fork_server_memory"

    huge_bytes: int
    pss_bytes: int
    work_s: float
    refusal: str


@dataclass(frozen=True, slots=True)
class TestBegan(Event):
    """The front end begins a test, on ranks or in the runner; `test` is its pytest node id."""

    __test__: ClassVar[bool] = False
    kind: ClassVar[str] = "test_began"

    test: str


@dataclass(frozen=True, slots=True)
class TestReported(Event):
    """The front end reports a part of a test, or a file that could not be collected.

    Attributes:
        test: pytest's node id.
        when: "collect", "setup", "call" or "teardown".
        outcome: "passed", "failed", "skipped"; "xfailed" and "xpassed" if it was marked as an expected failure; "rerun"
            for a try that failed if the case runs again.
        duration_s: Duration of this part, in seconds.
        message: One line: the reason of a skip or an expected failure, or which rank failed and how.
        text: The whole report of a failure.
        is_distributed: Whether `text` is this library's report, which the front end prints at the end of the log.
        properties: Names and values, as in JUnit's XML.
    """

    __test__: ClassVar[bool] = False
    kind: ClassVar[str] = "test_reported"

    test: str
    when: str
    outcome: str
    duration_s: float
    message: str = ""
    text: str = ""
    is_distributed: bool = False
    properties: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class TestEnded(Event):
    """The front end has reported all of a test."""

    __test__: ClassVar[bool] = False
    kind: ClassVar[str] = "test_ended"

    test: str


@dataclass(frozen=True, slots=True)
class RunEnded(Event):
    """The run has ended by itself, with the `exit_code` of the front end. This is the last event."""

    kind: ClassVar[str] = "run_ended"

    exit_code: int


@dataclass(frozen=True, slots=True)
class StreamCut(Event):
    """The file is full and lacks all later events. This is its last line.

    Attributes:
        limit_bytes: Limit of the file before compression.
    """

    kind: ClassVar[str] = "stream_cut"

    limit_bytes: int
