"""The watchers of one world: who they are, and what they are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from dist_testing.core.engine.hooks import CaseStart, EndCase, WatchedWorld, WorldWatcher
from dist_testing.core.engine.rank_record import RankRecord
from dist_testing.core.ground.add_ons import AddOn, add_ons, blaming
from dist_testing.core.ground.errors import MessageError
from dist_testing.core.process.rank_messages import RANK_MESSAGES


class Watchers(dict[str, WorldWatcher]):
    """By the name of the add-on, or by a name in brackets that no add-on has, in the order of their looks."""

    def __init__(self, world: WatchedWorld) -> None:
        super().__init__()
        self._world = world
        self._start: CaseStart | None = None

    def begin_case(self, start: CaseStart, taking_part: Sequence[AddOn]) -> None:
        """Tell all that a case begins, and make those of the add-ons that take part and have none yet."""
        self._start = start
        self.tell(lambda watcher: watcher.begin_case(start))
        for add_on in taking_part:
            if add_on.watcher and add_on.name not in self:
                self._make(add_on)

    def tell(self, call: Callable[[WorldWatcher], None]) -> None:
        """Call a method of each."""
        for name, watcher in self.items():
            with blaming(name, "its watcher"):
                call(watcher)

    def poll(self, now_s: float) -> Iterator[tuple[str, EndCase]]:
        """Let each look at the world; yield the names of those that end the case, and how."""
        for name, watcher in self.items():
            with blaming(name, "its watcher"):
                end = watcher.poll(now_s)
            if end is not None:
                yield name, end

    def deliver(self, records: Sequence[RankRecord], now_s: float) -> None:
        """Bring messages of the ranks to the watchers of the add-ons that they name. A rank can name any."""
        for record in records:
            extras, record.extras = record.extras, []
            for extra in extras:
                try:
                    if (known := self.get(extra.add_on) or self._at_first_message(extra.add_on)) is None:
                        raise RANK_MESSAGES.refused(f"a message for {extra.add_on!r}, an add-on without a watcher")
                    with blaming(extra.add_on, "its watcher"):
                        known.on_message(record.rank, extra.payload)
                except MessageError as error:
                    record.unreadable(now_s, str(error))

    def _at_first_message(self, name: str) -> WorldWatcher | None:
        found = next((add_on for add_on in add_ons() if add_on.name == name and add_on.watcher), None)
        return None if found is None else self._make(found)

    def _make(self, add_on: AddOn) -> WorldWatcher | None:
        """Make the watcher of an add-on, at the begin of a case or in the middle; None if it wants none here."""
        with blaming(add_on.name, "its watcher"):
            watcher: WorldWatcher | None = add_on.load("watcher")(self._world)
            if watcher is not None and self._start is not None:
                watcher.begin_case(self._start)
        if watcher is not None:
            self[add_on.name] = watcher
        return watcher
