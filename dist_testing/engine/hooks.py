"""The parts of add-ons that take place in the runner."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dist_testing.case import Case, CaseResult
from dist_testing.engine.rank_record import RankRecord
from dist_testing.events.event import Event


@dataclass(frozen=True, slots=True)
class CaseStart:
    """A case that begins on a world.

    Attributes:
        case: The case.
        number: Its number in the events of the run.
        began_s: When it began, on the monotonic clock.
        keeps_ranks: Whether the ranks are for further cases, too.
        emit: Takes events of the case. After its end it drops them.
    """

    case: Case
    number: int
    began_s: float
    keeps_ranks: bool
    emit: Callable[[Event], None]


class WatchedWorld(Protocol):
    """What a watcher sees of its world, and can do to it."""

    @property
    def records(self) -> Sequence[RankRecord]:
        """What the runner knows of each rank."""

    @property
    def is_running(self) -> bool:
        """Whether the ranks run a case, and no rank has been stopped by the runner."""

    def signal_ranks(self, ranks: Sequence[int], number: int) -> None:
        """Send a signal to those of the ranks that still run."""

    def order(self, add_on: str, payload: str) -> bool:
        """Give the place of the world an order of the add-on. Return False if the launcher makes no places."""

    def disable_proof(self) -> None:
        """Prove no hang in this case any more: a wait of its ranks may end by itself."""


class WorldWatcher:
    """Watches the cases of one world: the part `watcher` of an add-on, with defaults that do nothing.

    It is made with the world, before the first case that the add-on is wanted for, or at the first message for it.

        class MemoryLimit(WorldWatcher):
            def __init__(self, world: WatchedWorld) -> None:
                self._world = world

            def begin_case(self, start: CaseStart) -> None:
                self.next_s = start.began_s + 1

            def poll(self, now_s: float) -> str:
                if now_s < self.next_s:
                    return ""
                self.next_s = now_s + 1
                pids = [record.pid for record in self._world.records if record.pid and not record.has_ended]
                return "the ranks use more than 8 GiB" if resident_bytes(pids) > 8 << 30 else ""

    Attributes:
        next_s: When `poll` is due at the latest, on the monotonic clock; infinity for never.
    """

    next_s: float = math.inf

    def begin_case(self, start: CaseStart) -> None:
        """Forget the last case: this one begins."""

    def on_message(self, rank: int, payload: str) -> None:
        """Take a message that a rank has sent to this add-on. `poll` follows.

        Raises:
            MessageError: If it cannot be read. The rank's report is then unreadable.
        """

    def on_answer(self, payload: str) -> None:
        """Take a message of the world's place for this add-on. `poll` follows."""

    def poll(self, now_s: float) -> str:
        """Look at the world; called after each message, and when `next_s` has come.

        Returns:
            Why the case must end now: a sentence without a full stop, which is the reason of the verdict. "" to go on.
        """
        del now_s
        return ""

    def ranks_settled(self) -> None:
        """Every rank has reported, or ended as it should; the ranks are about to end."""

    def explain(self, result: CaseResult) -> CaseResult:
        """Return the result with what this watcher knows. See `Explainer`."""
        return result


class Explainer(Protocol):
    """A pure function from result to result: the part `explainer` of an add-on.

    Explainers of add-ons and watchers are called in the order of the add-ons, after the outcomes have given the
    verdict. They add notes, or replace the verdict where they know more.

        def blame_disk(result: CaseResult) -> CaseResult:
            if result.verdict.status is Status.FAILED and shutil.disk_usage("/").free < 1 << 20:
                return dataclasses.replace(result, notes=(*result.notes, "The disk is full."))
            return result
    """

    def __call__(self, result: CaseResult) -> CaseResult:
        """Return the result, changed or not."""
