"""The parts of add-ons that take part in the runner, and the watchers of one world, which it calls."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Protocol

from dist_testing.core.engine.rank_record import RankRecord
from dist_testing.core.ground.add_ons import AddOn, add_ons, blaming
from dist_testing.core.ground.case import Case, CaseResult
from dist_testing.core.ground.errors import LaunchError, MessageError
from dist_testing.core.ground.outcomes import Kind
from dist_testing.core.ground.spec import Spec
from dist_testing.core.launch.isolation import Isolation
from dist_testing.core.launch.launcher import Launcher, PlaceLauncher
from dist_testing.core.process.launcher_messages import log_name
from dist_testing.core.process.rank_messages import RANK_MESSAGES


@dataclass(frozen=True, slots=True)
class CaseStart:
    """A case that begins on a world.

    Attributes:
        case: The case.
        began_s: When it began, on the monotonic clock.
        keeps_ranks: Whether the ranks are for further cases, too.
    """

    case: Case
    began_s: float
    keeps_ranks: bool


@dataclass(frozen=True, slots=True)
class EndCase:
    """A watcher ends the case: its running ranks are killed.

    Attributes:
        reason: The reason of the verdict, a sentence without a full stop; "" if an explainer gives it.
        kind: The outcome of the ranks that are killed: STOPPED, or HUNG.
    """

    reason: str = ""
    kind: Literal[Kind.STOPPED, Kind.HUNG] = Kind.STOPPED


@dataclass(eq=False)
class WatchedWorld(ABC):
    """What a watcher sees of its world, and can do to it.

    Attributes:
        records: What the runner knows of each rank.
        directory: Its folder.
        stacks_fds: Rank to the socket that its stacks come from, and other answers of its helper thread.
        group_limit_s: The limit that this library gives to groups and stores, in seconds.
        in_process_of: Name of the add-on that runs the ranks as threads of one process; "" if each is a process.
        over_s: When it was over, on the monotonic clock; None before.
    """

    _launcher: Launcher
    _number: int
    records: Sequence[RankRecord]
    directory: Path
    stacks_fds: Mapping[int, int]
    group_limit_s: float
    in_process_of: str = ""

    def __post_init__(self) -> None:
        self.over_s: float | None = None
        self._is_disturbed = False

    @functools.cached_property
    def logs(self) -> Sequence[Path]:
        """The files that take the output of the ranks, by rank. A rank makes its file."""
        return [self.directory / log_name(record.rank) for record in self.records]

    @property
    def is_over(self) -> bool:
        """Whether the world has ended and nothing of it is left."""
        return self.over_s is not None

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """Whether the ranks run a case, and no rank has been stopped by the runner."""

    @property
    @abstractmethod
    def is_undisturbed(self) -> bool:
        """Whether only the ranks decide how the case goes on: all have begun, and nothing is broken on purpose."""

    def signal_ranks(self, ranks: Sequence[int], number: int) -> None:
        """Send a signal to those of the ranks that still run."""
        if not self.is_over:
            self._launcher.signal(ranks, number)

    def order(self, add_on: str, payload: str) -> bool:
        """Give the place of the world an order of the add-on. Return False if the launcher makes no places."""
        if not isinstance(self._launcher, PlaceLauncher):
            return False
        self._launcher.order(self._number, add_on, payload)
        return True

    def disable_proof(self) -> None:
        """Prove no hang in this case any more: a wait of its ranks may end by itself."""
        self._is_disturbed = True


class WorldWatcher:
    """Watches the cases of one world: the part `watcher` of an add-on, with defaults that do nothing.

    It is made with the world, before the first case that the add-on is wanted for, or at the first message for it. What
    makes it can also return None: then this world has none.

        class MemoryLimit(WorldWatcher):
            def begin_case(self, start: CaseStart) -> None:
                self.next_s = start.began_s + 1

            def poll(self, now_s: float) -> EndCase | None:
                if now_s < self.next_s:
                    return None
                self.next_s = now_s + 1
                pids = [record.pid for record in self._world.records if record.pid and not record.has_ended]
                return EndCase("the ranks use more than 8 GiB") if resident_bytes(pids) > 8 << 30 else None

    Attributes:
        next_s: When `poll` is due at the latest, on the monotonic clock; infinity for never.
        headline: One sentence on the state of the case, for a run that ends without a result; "" for none.
    """

    next_s: float = math.inf
    headline: str = ""

    def __init__(self, world: WatchedWorld) -> None:
        """Keep the world that it watches, as `_world`."""
        self._world = world

    def begin_case(self, start: CaseStart) -> None:
        """Forget the last case: this one begins."""

    def on_message(self, rank: int, payload: str) -> None:
        """Take a message that a rank has sent to this add-on. `poll` follows.

        Raises:
            MessageError: If it cannot be read. The rank's report is then unreadable.
        """

    def on_answer(self, payload: str) -> None:
        """Take a message of the world's place for this add-on. `poll` follows."""

    def poll(self, now_s: float) -> EndCase | None:
        """Look at the world; called after each message, and when `next_s` has come. None to go on."""
        del now_s
        return None

    def before_kill(self, kind: Kind) -> None:
        """The ranks that still run are about to be killed: HUNG at the deadline, STOPPED after a failure of others."""

    def case_over(self) -> None:
        """The case is over, and its ranks are gone unless a worker pool keeps them. `explain` follows."""

    def ranks_settled(self) -> None:
        """Every rank has reported, or ended as it should; the ranks are about to end."""

    def explain(self, result: CaseResult) -> CaseResult:
        """Return the result with what this watcher knows. See `Explainer`."""
        return result


@dataclass(frozen=True, slots=True)
class ResourceWish:
    """A world that is about to be asked for.

    Attributes:
        case: Its first case.
        spec: What the target asks for.
        isolation: How its ranks are made.
        limit_s: Limit of the case, in seconds. It starts again when all resources are held.
        directory: The world's folder. It is made later.
        log_line: Takes a line for the log, such as why the case waits.
    """

    case: Case
    spec: Spec
    isolation: Isolation
    limit_s: float
    directory: Path
    log_line: Callable[[str], None]


class HeldResource:
    """What one world holds, from `WorldResource.acquire` to `release`, with defaults for the least.

    Attributes:
        env: Variables of the ranks. They override the user's.
        defaults: Variables of the ranks where the user has not set them.
        fds: Descriptors that each rank inherits and only holds open: so the resource ends with the last of them.
        places: The group of each rank, as torchrun counts them; empty if the resource has no say in it. Of an add-on
            with a `place`.
        host: Address of the store in that place.
        devices: Index of the device of each rank, by its local rank; empty if ranks take the devices in turn.
        loss: Set if the resource is gone for good, so that the world that held it has no result.
    """

    env: Mapping[str, str] = MappingProxyType({})
    defaults: Mapping[str, str] = MappingProxyType({})
    fds: Sequence[int] = ()
    places: Sequence[int] = ()
    host: str = ""
    devices: Sequence[int] = ()
    loss: LaunchError | None = None

    def check(self, *, are_ranks_gone: bool) -> Sequence[str]:
        """Look at the resource after a case; with `are_ranks_gone`, the last one of the world.

        Returns:
            What the ranks have left behind in it, a text for each thing, such as "2 keys are left in the server". It
            fails a case that passed.
        """
        del are_ranks_gone
        return ()

    def explain(self, result: CaseResult) -> CaseResult:
        """Return the result with what is known of the resource. See `Explainer`."""
        return result

    def release(self, *, are_ranks_gone: bool) -> None:
        """Give the resource back. Without `are_ranks_gone` a rank could not be killed, and may still use it."""


class WorldResource(Protocol):
    """Something that each world needs for itself: the part `resource` of an add-on. It is made once per run.

        class RedisServer(WorldResource):
            def acquire(self, wish: ResourceWish) -> HeldResource:
                return _Running(subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", path_for(wish)]))

        class _Running(HeldResource):
            def __init__(self, process: subprocess.Popen[bytes]) -> None:
                self._process = process
                self.env = {"REDIS": ...}

            def release(self, *, are_ranks_gone: bool) -> None:
                self._process.terminate()
                self._process.wait()

    What was acquired is released with the world, also if a later resource is not to be had, or no rank starts.
    """

    def acquire(self, wish: ResourceWish) -> HeldResource | None:
        """Take it, and wait for it if need be. Return None if the world needs none.

        Raises:
            LaunchError: If it cannot be had. The case then fails by its infrastructure.
            UsageError: If the case asks for something impossible.
        """


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


class Watchers(dict[str, WorldWatcher]):
    """The watchers of one world, in the order of their looks. A name in brackets is that of no add-on."""

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
