"""Passes every event to the sinks that have subscribed to its kind."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dist_testing.core.events.event import KINDS, ON_DEMAND, SCHEMA, Event, RunStarted
from dist_testing.core.ground.error_text import summarise

if TYPE_CHECKING:
    from dist_testing.core.ground.spec import Spec

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
