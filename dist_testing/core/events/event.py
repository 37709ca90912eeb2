"""The events of a run, with their form in JSON, and the stream that passes each to the sinks of its kind."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from dist_testing.core.ground.codec import WrongValueError, shape_of
from dist_testing.core.ground.error_text import summarise
from dist_testing.core.ground.record import DIGITS, CaseRecord, Seconds

if TYPE_CHECKING:
    from dist_testing.core.ground.spec import Spec

# Increase it when a kind or a field disappears or changes its meaning. A new kind or field needs no increase, because
# readers ignore unknown ones.
SCHEMA = 2


@dataclass(frozen=True, slots=True)
class Event:
    """One fact of a run."""

    is_open: ClassVar[bool] = True
    __test__: ClassVar[bool] = False

    at_s: Seconds  # when the runner learned it, on the monotonic clock, in seconds

    def to_wire(self) -> dict[str, Any]:
        """Return the event as JSON values, with its kind under "event". Rounds its times to microseconds."""
        write = shape_of(type(self)).write
        assert write is not None
        wire = {"event": _NAMES[type(self)], **write(self)}
        return {name: round(value, DIGITS) if type(value) is float else value for name, value in wire.items()}


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
    """The run begins. This is the first event."""

    schema: int  # version of the format: `SCHEMA`
    wall_zero_s: float  # the wall clock, in seconds since 1970, when the monotonic clock was 0
    target: str = ""  # label of the Bazel target; "" outside Bazel
    backend: str = ""  # name of the backend
    versions: dict[str, str] | None = None  # name to version, of Python, torch and pytest
    host: str = ""  # name of the machine; "" if unknown


@dataclass(frozen=True, slots=True)
class TestsCollected(Event):
    """The front end has collected its tests and will run `count` of them."""

    count: int


@dataclass(frozen=True, slots=True)
class ForkServerMemory(Event):
    """The fork server has moved its memory to huge pages, or does not do it; told when the next world is asked for."""

    huge_bytes: int  # its memory in huge pages; 0 if it has moved nothing
    pss_bytes: int  # its share of all memory that it uses, pages of libraries included; 0 if it has moved nothing
    work_s: float  # time of the work, in seconds. The fork server does it while it waits for the runner.
    refusal: str = ""  # why it does not move more; "" if it has moved all


@dataclass(frozen=True, slots=True)
class CaseStarted(Event):
    """The front end begins a case, on ranks or in the runner; `nodeid` is pytest's name of it."""

    nodeid: str


@dataclass(frozen=True, slots=True)
class RankOutput(Event):
    """A rank has printed a line. The engine reads lines during the case, and only if a sink asks for this kind."""

    rank: int
    line: str


@dataclass(frozen=True, slots=True)
class WorldEnded(Event):
    """The engine has ended one try of a case. The front end makes the case's record of it, so no file has this kind."""

    record: CaseRecord


@dataclass(frozen=True, slots=True)
class CaseRecorded(Event):
    """The result of a case is known. A second one, after its teardown has failed, replaces the first."""

    record: CaseRecord


@dataclass(frozen=True, slots=True)
class CaseEnded(Event):
    """The case has ended, with all of its teardown."""

    nodeid: str


@dataclass(frozen=True, slots=True)
class RunEnded(Event):
    """The run has ended by itself, with the `exit_code` of the front end. This is the last event."""

    exit_code: int


@dataclass(frozen=True, slots=True)
class StreamCut(Event):
    """The file is full and lacks all later events. This is its last line."""

    limit_bytes: int  # Limit of the file before compression


# The name in JSON of each kind.
KINDS: dict[str, type[Event]] = {
    "run_started": RunStarted,
    "tests_collected": TestsCollected,
    "fork_server_memory": ForkServerMemory,
    "case_started": CaseStarted,
    "rank_output": RankOutput,
    "world_ended": WorldEnded,
    "case": CaseRecorded,
    "case_ended": CaseEnded,
    "run_ended": RunEnded,
    "stream_cut": StreamCut,
}
_NAMES = {kind: name for name, kind in KINDS.items()}
# A sink gets these only if it names them: the runner has to read logs, or to make a record twice.
ON_DEMAND = (RankOutput, WorldEnded)


def event_of(wire: object) -> Event | None:
    """Make an event, without unknown fields, from the result of `Event.to_wire` that was JSON; None of an unknown kind.

    Raises:
        ValueError: If `wire` has no kind, lacks a field, or has a field of a wrong type.
    """
    name = wire.get("event") if type(wire) is dict else None
    if not isinstance(name, str):
        raise ValueError('expected an object with the name of an event under "event"')
    if name not in KINDS:
        return None
    try:
        event: Event = shape_of(KINDS[name]).read(wire)
    except WrongValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return event


# Packages whose versions an event file names.
_PACKAGES = ("torch", "pytest")
# mypy cannot express "the union of the types in `kinds`".
_Sink = Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class _Subscription:
    sink: _Sink
    name: str
    is_essential: bool


class EventStream:
    """Passes the events of one run to sinks.

    Only one thread at a time may emit. A forked child of this process emits nothing: a rank, or a child of a test, must
    not write to the files of the runner.
    """

    def __init__(self) -> None:
        # Takes a line for the log when a sink has failed.
        self.warn: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True)
        self._by_kind: dict[type[Event], tuple[_Subscription, ...]] = {}
        self._pid = os.getpid()
        self._first: RunStarted | None = None

    def wants(self, *kinds: type[Event]) -> bool:
        """Whether there is a sink for one of these kinds."""
        return any(self._by_kind.get(kind) for kind in kinds)

    def subscribe(self, sink: _Sink, *kinds: type[Event], name: str, is_essential: bool = False) -> None:
        """Call `sink` with every event of some kinds from now on, in order.

        A sink that subscribes to `RunStarted` later gets this event at once. The stream drops a sink that raises an
        Exception, with one warning. Others, such as KeyboardInterrupt, are not the sink's fault: they propagate, and
        the sink stays.

        Args:
            sink: Takes one event.
            *kinds: Kinds of events; by default all except those of `ON_DEMAND`.
            name: Name of the sink in a warning.
            is_essential: Whether `emit` raises the exceptions of the sink: for a sink that decides the result of the
                run, which could be wrong without it.
        """
        added = _Subscription(sink, name, is_essential)
        for kind in kinds or [kind for kind in KINDS.values() if kind not in ON_DEMAND]:
            self._by_kind[kind] = (*self._by_kind.get(kind, ()), added)
        if self._first is not None and added in self._by_kind.get(RunStarted, ()):
            self._hand(added, self._first)

    def emit(self, event: Event) -> None:
        """Pass an event to the sinks that want it."""
        if isinstance(event, RunStarted):
            self._first = event
        if os.getpid() == self._pid:
            for subscription in self._by_kind.get(type(event), ()):
                self._hand(subscription, event)

    def _hand(self, subscription: _Subscription, event: Event) -> None:
        try:
            subscription.sink(event)
        except Exception as error:
            if subscription.is_essential:
                raise
            self._by_kind = {
                kind: tuple(one for one in subscriptions if one is not subscription)
                for kind, subscriptions in self._by_kind.items()
            }
            text = f"{subscription.name} gets no more events: {summarise(error)}. No verdict depends on it."
            # If the log itself is broken, there is no place for the warning.
            with contextlib.suppress(OSError, ValueError):
                self.warn(f"dist_testing: {text}")


def run_started(spec: Spec) -> RunStarted:
    """Return the event that a run begins now. Finds the versions of packages in a few milliseconds, without imports."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            # The package has no metadata, or runs from a source tree.
            continue
    now_s = time.monotonic()
    # $DIST_TESTING_RBE_WORKER (user): name of the worker in events and reports, for remote executors that run several
    # workers on one machine (default: the host name).
    host = os.environ.get("DIST_TESTING_RBE_WORKER") or platform.node()
    return RunStarted(now_s, SCHEMA, time.time() - now_s, spec.target, spec.backend.name, versions, host)
