"""`world.faults` of a rank: its requests go to the watcher of the world."""

from __future__ import annotations

import functools
import time

from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.layout import Layout
from dist_testing.core.ground.world import AsksRunner, World
from dist_testing.nodes.fault_messages import FAULT_ANSWERS, FAULT_REQUESTS, Request
from dist_testing.nodes.faults import Faults

ADD_ON = "faults"


def ask(runner: AsksRunner, request: Request) -> None:
    """Bring a request to the runner, and wait until the fault has happened.

    Raises:
        UsageError: If the runner refuses.
    """
    answer = runner.ask(ADD_ON, FAULT_REQUESTS.to_wire(request).decode(), "world.faults")
    if refusal := FAULT_ANSWERS.from_wire(answer).refusal:
        raise UsageError(refusal)


def faults_of(world: World, runner: AsksRunner, layout: Layout) -> Faults:
    """Return `world.faults` of a rank."""

    def note_delay(rank: int, barrier: str, seconds: float) -> None:
        world.store.set(_delay_key(rank, barrier), str(seconds))

    return Faults(layout, functools.partial(ask, runner), note_delay)


def be_late(world: World, barrier: str) -> None:
    """Wait before a barrier, if a rank has asked for a delay of this one."""
    key = _delay_key(world.rank, barrier)
    if world.store.check([key]):
        seconds = float(world.store.get(key))
        world.store.delete_key(key)
        time.sleep(seconds)


def _delay_key(rank: int, barrier: str) -> str:
    return f"dist_testing/delay/{rank}/{barrier}"
