"""The services of a world: acquired before its ranks start, watched while they run, and told in the report."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from dist_testing.core.engine.hooks import (
    CaseStart,
    EndCase,
    HeldResource,
    ResourceWish,
    WatchedWorld,
    WorldResource,
    WorldWatcher,
)
from dist_testing.core.ground.case import Case, CaseResult
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.outcomes import GOOD, Cause, Kind, Status, Verdict
from dist_testing.core.ground.spec import Spec
from dist_testing.services import scopes
from dist_testing.services.scopes import Shared, end, key_of, share
from dist_testing.services.service import VARIABLE, Service

# Between two looks at the services of a case. Seconds.
_LOOK_S = 0.1
# A rank that lost its service may report that before the keeper does, which needs a CPU on a busy machine. Seconds.
_SAME_MOMENT_S = 2.0
_held: dict[Path, HeldServices] = {}


def read_services(subject: str, value: object) -> tuple[Service, ...]:
    """Return the services that a test or a class names: one, or a list of them."""
    services = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not services or not all(isinstance(one, Service) for one in services):
        raise UsageError(
            f"{subject}: services = {value!r:.200}; expected a Service, or a list of them.\n"
            "They run while the ranks of the test do, and the ranks get their addresses.\n"
            "Write services=[server], with server = dist_testing.services.Service(...) in the module."
        )
    names = [one.name for one in services if isinstance(one, Service)]
    if len(set(names)) < len(names):
        raise UsageError(
            f"{subject}: services = {value!r:.200}; two of them have the same name.\n"
            "A rank finds the address of a service by its name.\n"
            'Give each a name of its own: Service(..., name="second").'
        )
    return services


def check(case: Case, spec: Spec) -> None:
    """Refuse services that the ranks could not reach."""
    if case.settings.get("nodes", 1) != 1:
        raise UsageError(
            f"{case.name}: services with nodes = {case.settings['nodes']}.\n"
            "A service listens on the machine's loopback interface, and simulated nodes have interfaces of their own.\n"
            "Leave one of the two out."
        )


class ServiceResource(WorldResource):
    """Has the services of each world running."""

    def acquire(self, wish: ResourceWish) -> HeldResource:
        """Start those that do not run yet."""
        if not wish.isolation.starts_ranks:
            raise UsageError(
                f"{wish.case.name}: services for ranks that another launcher has started.\n"
                "Only ranks that this library starts get the addresses of services.\n"
                "Start pytest by itself, or the service beside the launcher."
            )
        held = HeldServices(wish)
        try:
            for service in wish.case.settings["services"]:
                held.add(service)
        except BaseException:
            held.release(are_ranks_gone=True)
            raise
        return held


class HeldServices(HeldResource):
    """The services of one world."""

    def __init__(self, wish: ResourceWish) -> None:
        self._wish = wish
        self._services: list[Shared] = []
        self._ended: Shared | None = None
        _held[wish.directory] = self

    def add(self, service: Service) -> None:
        """Have one running."""
        wish = self._wish
        test = wish.case.name if "::" in wish.case.name else scopes.running_item or wish.case.name
        if "::" not in test:
            scopes.follow_unittest(test)
        # A world of its own, also if the test runs again.
        key = str(wish.directory) if service.scope == "function" else key_of(test, service.scope)
        shared = share(service, key, wish.log_line, may_start=wish.limit_s > 0)
        self._services.append(shared)
        addresses = {one.running.definition.name: [one.running.port, one.running.pid] for one in self._services}
        self.env = {VARIABLE: json.dumps(addresses)}

    def first_ended(self) -> Shared | None:
        """Return the service that was the first to end by itself; None if all run."""
        ended = [one for one in self._services if one.ended()]
        return min(ended, key=lambda one: one.running.ended.at_s if one.running.ended else 0.0, default=None)

    def check(self, *, are_ranks_gone: bool) -> Sequence[str]:
        """Stop the services of this world alone when its ranks are gone; return what is wrong."""
        for one in self._services:
            one.running.settle()
        # `explain` tells one that has ended.
        self._ended = self.first_ended()
        if self._ended is not None:
            self._ended.is_told = True
        return self._stop() if are_ranks_gone else ()

    def explain(self, result: CaseResult) -> CaseResult:
        """Blame a service that has ended before a rank failed; add the ends of the logs of all."""
        found = result.verdict if self._ended is None else blamed(result, self._ended)
        if found.status is not Status.FAILED:
            return result
        ended = [f"{one.ended()}." for one in self._services if one.ended() and found is result.verdict]
        tails = [one.running.tail() for one in self._services]
        return dataclasses.replace(result, verdict=found, notes=(*result.notes, *ended, *tails))

    def release(self, *, are_ranks_gone: bool) -> None:
        """Give them back. Those of a wider scope go on."""
        _held.pop(self._wish.directory, None)
        for text in self._stop():
            self._wish.log_line(text)
        for one in self._services:
            one.users -= 1

    def _stop(self) -> list[str]:
        own = [one for one in self._services if one.running.definition.scope == "function"]
        return [text for one in own for text in end(one)]


def watch(world: WatchedWorld) -> ServiceWatch | None:
    """Return the watcher of a world; None if it has no services."""
    held = _held.get(world.directory)
    return ServiceWatch(held) if held is not None else None


class ServiceWatch(WorldWatcher):
    """Ends a case when one of its services has ended."""

    def __init__(self, services: HeldServices) -> None:
        self._services = services

    def begin_case(self, start: CaseStart) -> None:
        """Look from now on."""
        self.next_s = start.began_s

    def poll(self, now_s: float) -> EndCase | None:
        """Look at the services."""
        if now_s < self.next_s:
            return None
        self.next_s = now_s + _LOOK_S
        first = self._services.first_ended()
        return None if first is None else EndCase(first.running.headline())


def blamed(result: CaseResult, service: Shared) -> Verdict:
    """Return the verdict on a case of which a service has ended: it is the culprit, unless a rank failed before."""
    ended = service.running.ended
    assert ended is not None
    failed = [one for one in result.outcomes if one.kind not in GOOD and one.kind not in (Kind.STOPPED, Kind.HUNG)]
    if any(one.at_s + _SAME_MOMENT_S < ended.at_s for one in failed):
        return result.verdict
    return Verdict(Status.FAILED, Cause.FAILURE, service.running.headline())
