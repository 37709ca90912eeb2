"""Watches one world from its start to its end.

It waits only on descriptors: the launcher's and the channel of each rank. It does not poll or sleep, and every wait has
a limit. Worlds that run side by side are watched together: who waits for one of them handles all.
"""

from __future__ import annotations

import enum
import math
import select
import signal
import time
from collections.abc import Callable, Sequence

from dist_testing.core.engine.hooks import CaseStart, WatchedWorld, Watchers
from dist_testing.core.engine.rank_record import RankRecord, unkillable
from dist_testing.core.engine.stack_dumps import ask_for_stacks
from dist_testing.core.ground.add_ons import AddOn, blaming
from dist_testing.core.ground.case import CaseBody
from dist_testing.core.ground.errors import LaunchError
from dist_testing.core.ground.outcomes import Kind
from dist_testing.core.process.launcher_messages import RankEnded, WorldExtra, WorldOver, WorldRefused, WorldStarted
from dist_testing.core.process.rank_messages import FinishWorld, Instruction, LeaveWorld, NextCase

# From the request for ranks until all are ready: on a machine that swaps, or while interpreters import torch. Seconds.
_START_LIMIT_S = 120.0
# Applies also when the run is out of time: otherwise such a case looks like a machine that cannot start ranks.
_LEAST_START_S = 1.0
# Time for the reports of the other ranks after the first failure. Seconds.
PEER_GRACE_S = 0.5
# The same while each failure only says that a peer went away: that peer may still be cleaning up. Seconds.
_CAUSE_GRACE_S = 2.0
# Time for the other ranks after the first skip: correct ranks decide to skip at different times. Seconds.
_SKIP_GRACE_S = 5.0
# For the stacks of ranks that a failure elsewhere has left waiting: nice to have, so the verdict does not wait long.
_VICTIM_STACKS_S = 0.3
# For the stacks of ranks that are the problem. A rank that is stopped, or stuck in the kernel, never answers. Seconds.
_HUNG_STACKS_S = 2.0
# Limit of one wait: Python handles a signal only after the wait if it arrives just before it. Seconds.
_LONGEST_POLL_S = 1.0
# Until the log says that ranks are still starting, and between two of these lines. Seconds.
_STARTING_S = 5.0
# Ranks of a world for which the log says it. The line would break into the output of unittest in each slow case.
_MANY = 32
# A world whose messages nobody has read for longer gets the time back: another world or a plugin has used it. Seconds.
_AWAY_S = 0.1
# Limit from SIGKILL until all ranks are gone. Longer than the fork server needs to clean up. Seconds.
_KILL_LIMIT_S = 15.0


class _Stage(enum.Enum):
    RUNNING = enum.auto()  # a case
    BETWEEN = enum.auto()  # the ranks wait for the next case
    FINISHING = enum.auto()  # ranks destroy their groups
    LEAVING = enum.auto()
    KILLED = enum.auto()
    OVER = enum.auto()  # nothing is left


class Supervisor(WatchedWorld):
    """Watches the cases of one world, which was just asked for, until it has ended.

    Attributes:
        stacks: Rank to its stacks, of ranks that were running when something went wrong.
        leaked: Command lines of what the ranks left behind.
        ended_by: Why a watcher has ended the case, with the name of its add-on; "" if none has.
        beside: All worlds that run side by side, with this one; empty if this one runs alone.
        before_look: Called before each look of `wait_case`.
        log_line: Takes a line for the log, such as how many ranks are ready.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.stacks: dict[int, str] = {}
        self.leaked: list[str] = []
        # While the caller waits for a condition, the case is not left to the ranks.
        self._is_waiting = False
        self.watchers = Watchers(self)
        self.ended_by = ""
        self._stage = _Stage.BETWEEN
        self._keep = False
        self._limit_s = 0.0
        self._latest_s = math.inf
        self._is_timed = False
        self._deadline_s = math.inf
        self._grace_end_s = math.inf
        # The rank in the debugger: no limit and no failure of another rank ends its test.
        self._debugged: RankRecord | None = None
        self.beside: Sequence[Supervisor] = ()
        self.before_look: Callable[[], None] = lambda: None
        self.log_line: Callable[[str], None] = lambda line: None
        self._next_line_s = math.inf
        self._looked_s = time.monotonic()
        # Raised by the next wait for this world; it happened while another one was awaited.
        self._error: Exception | None = None
        self._by_fd = {record.channel.fileno(): record for record in self.records}

    def begin_case(
        self,
        start: CaseStart,
        limit_s: float,
        *,
        latest_s: float,
        body: CaseBody | None,
        taking_part: Sequence[AddOn] = (),
    ) -> None:
        """Begin a case, whose limit counts from the moment when every rank is ready.

        It must have ended at `latest_s`, on the monotonic clock. `body` is what waiting ranks run; None if the ranks
        were started with it.
        """
        self._stage = _Stage.RUNNING
        self._is_disturbed = False
        self._keep = start.keeps_ranks
        case = start.case
        self._debugged = None if case.debug_rank is None else self.records[case.debug_rank]
        self._limit_s = limit_s
        self._latest_s = latest_s
        self._grace_end_s = math.inf
        now_s = self._looked_s = time.monotonic()
        # The ranks of a worker pool are ready; new ranks must start first.
        self._is_timed = body is not None
        self._next_line_s = now_s + _STARTING_S if len(self.records) >= _MANY else math.inf
        start_limit_s = min(_START_LIMIT_S, max(_LEAST_START_S, latest_s - now_s))
        self._deadline_s = now_s + (limit_s if self._is_timed else start_limit_s)
        self.ended_by = ""
        self.watchers.begin_case(start, taking_part)
        for record in self.records:
            record.begin_case(case.expected_exits.get(record.rank), exit_0_passes=case.exit_0_passes)
            if body is not None:
                record.instruct(NextCase(body))

    def wait_case(self) -> None:
        """Wait until the case is over, and until the ranks are gone unless a worker pool keeps them.

        Each wait of this class can raise the same.

        Raises:
            LaunchError: If the launcher ends, cannot start a rank, or cannot kill one.
        """
        while self._stage not in (_Stage.BETWEEN, _Stage.OVER):
            self.before_look()
            self._look(math.inf)
        self.watchers.tell(lambda watcher: watcher.case_over())

    def finish(self, limit_s: float) -> None:
        """End the waiting ranks of a worker pool, which have `limit_s` seconds for it, and wait until they are gone."""
        self._deadline_s = time.monotonic() + limit_s
        self._instruct(FinishWorld(), _Stage.FINISHING)
        while not self.is_over:
            self._look(math.inf)

    def abort(self, *, ask_where: bool = False) -> None:
        """Kill the ranks at once and wait until they are gone, because the run is interrupted.

        With `ask_where`, first wait for the reports of ranks that got the same Ctrl-C, and ask the others for their
        stacks.
        """
        if ask_where:
            self.wait_until(lambda: self._stage is _Stage.KILLED, PEER_GRACE_S)
        if self._stage not in (_Stage.KILLED, _Stage.OVER):
            self._stop(Kind.STOPPED, time.monotonic(), _HUNG_STACKS_S if ask_where else None)
        while not self.is_over:
            self._look(math.inf)

    def ignore_exits(self) -> None:
        """Do not stop the other ranks when a rank ends, until the case is over."""
        for record in self.records:
            record.ignores_exits = True

    def wait_until(self, holds: Callable[[], bool], limit_s: float = math.inf) -> bool:
        """Watch the case until a condition holds, or the case is over; return whether the condition holds.

        It is checked after every look, for at most `limit_s` seconds; 0 looks once.
        """
        until_s = time.monotonic() + limit_s
        is_first = True
        self._is_waiting = True
        try:
            while not holds() and self._stage not in (_Stage.BETWEEN, _Stage.OVER):
                if not is_first and time.monotonic() >= until_s:
                    return False
                self._look(until_s)
                is_first = False
        finally:
            self._is_waiting = False
        return holds()

    @property
    def is_running(self) -> bool:
        """Whether the ranks run a case, and no rank has been stopped by the runner."""
        return self._stage is _Stage.RUNNING

    @property
    def is_undisturbed(self) -> bool:
        """Whether only the ranks decide how the case goes on: all have begun, and nothing is broken on purpose."""
        is_left_to_ranks = self._is_timed and self._debugged is None and not self._is_waiting
        return self.is_running and is_left_to_ranks and not self._is_disturbed

    def stacks_now(self) -> dict[int, str]:
        """Return rank to stacks, for ranks that have not ended the case. The case goes on."""
        return ask_for_stacks(self, [one for one in self.records if not one.is_settled], _HUNG_STACKS_S)

    @property
    def has_work(self) -> bool:
        """Whether the ranks run a case, or end, and nothing prevents the runner from watching them."""
        return self._stage not in (_Stage.BETWEEN, _Stage.OVER) and self._error is None

    def _look(self, until_s: float) -> None:
        """Wait for the next message or limit of this world or one beside it, at most until `until_s`; act on it."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        others = [world for world in self.beside if world is not self and world.has_work]
        begin_s = time.monotonic()
        poller = select.poll()
        limit_s = until_s
        for world in (self, *others):
            if self.beside:
                world._extend(begin_s)
            next_s = [watcher.next_s for watcher in world.watchers.values()]
            limit_s = min(limit_s, world._deadline_s, world._grace_end_s, *next_s)
            for fd in (world._launcher.fileno(), *world._by_fd):
                poller.register(fd, select.POLLIN)
        left_s = min(max(0.0, limit_s - begin_s), _LONGEST_POLL_S)
        ready = [fd for fd, _ in poller.poll(math.ceil(1000 * left_s))]
        # Messages that are seen together get the same time.
        now_s = time.monotonic()
        for world in others:
            try:
                world._act(ready, now_s)
            except Exception as error:
                world._error = error
        self._act(ready, now_s)

    def _extend(self, now_s: float) -> None:
        """Add the time to the limits for which nobody has looked: in it, no message of the ranks could be read."""
        if (away_s := now_s - self._looked_s) > _AWAY_S:
            self._deadline_s = min(self._deadline_s + away_s, max(self._deadline_s, self._latest_s))
            self._grace_end_s += away_s

    def _act(self, ready: Sequence[int], now_s: float) -> None:
        """Act on messages, on descriptors that are ready, and on limits. It is `now_s`."""
        self._looked_s = now_s
        if self._launcher.fileno() in ready:
            self._hear_launcher(now_s)
        for fd in ready:
            if (record := self._by_fd.get(fd)) and (record.read(now_s) is False or record.is_done):
                del self._by_fd[fd]
        self.watchers.deliver(self.records, now_s)
        for name, end in self.watchers.poll(now_s):
            if self.is_running:
                self.ended_by = f"{end.reason} (add-on {name})" if end.reason else ""
                self._stop(end.kind, time.monotonic(), _HUNG_STACKS_S)
        if not self.is_over:
            self._decide(now_s)

    def _hear_launcher(self, now_s: float) -> None:
        for event in self._launcher.events():
            if event.world != self._number:
                continue
            match event:
                case WorldStarted():
                    for record, pid in zip(self.records, event.pids, strict=False):
                        if pid is not None and record.pid is None:
                            record.pid, record.started_s = pid, now_s
                case RankEnded() if event.rank >= len(self.records):
                    raise LaunchError(
                        f"Rank {event.rank} of world {event.world}, which has {len(self.records)} ranks, has ended.\n"
                        "The launcher and the runner disagree about a world, so no outcome of it can be trusted.\n"
                        "This is a bug of dist_testing: please report it with this text."
                    )
                case RankEnded():
                    record = self.records[event.rank]
                    self._by_fd.pop(record.channel.fileno(), None)
                    record.ended(event.exit_code, now_s, event.reason)
                case WorldRefused():
                    raise LaunchError(f"Rank {event.rank} of {len(self.records)} could not be started: {event.text}")
                case WorldExtra():
                    with blaming(event.add_on, "its watcher"):
                        self.watchers[event.add_on].on_answer(event.payload)
                case WorldOver():
                    self.leaked = list(event.leaked)
                    self._stage = _Stage.OVER
                    self.over_s = now_s

    def _decide(self, now_s: float) -> None:
        records = self.records
        if self._stage is _Stage.KILLED:
            if now_s >= self._deadline_s:
                raise LaunchError(unkillable(records, _KILL_LIMIT_S))
            return
        if self.is_running and not self._is_timed and all(record.ready_s is not None for record in records):
            self._is_timed = True
            self._deadline_s = min(now_s + self._limit_s, self._latest_s)
        if troubled := [record for record in records if record.first_trouble_s is not None]:
            grace_s = _CAUSE_GRACE_S if all(record.has_lost_a_peer for record in troubled) else PEER_GRACE_S
            if all(record.has_told_all for record in records):
                grace_s = 0.0
            self._grace_end_s = min(self._grace_end_s, now_s + grace_s)
        elif self._stage is _Stage.RUNNING:
            self._decide_running(now_s)
        elif self._stage is _Stage.FINISHING and all(record.is_done or record.has_ended for record in records):
            self._instruct(LeaveWorld(), _Stage.LEAVING)
        if self._debugged is not None and not (self._debugged.is_done or self._debugged.has_told_all):
            self._grace_end_s = self._deadline_s = math.inf
        if now_s >= self._grace_end_s:
            self.watchers.tell(lambda watcher: watcher.before_kill(Kind.STOPPED))
            in_vain = any(record.waited_in_vain for record in records)
            self._stop(Kind.STOPPED, now_s, _HUNG_STACKS_S if in_vain else _VICTIM_STACKS_S)
        elif now_s >= self._deadline_s:
            self.watchers.tell(lambda watcher: watcher.before_kill(Kind.HUNG))
            self._stop(Kind.HUNG, now_s, _HUNG_STACKS_S)

    def _decide_running(self, now_s: float) -> None:
        if not self._is_timed and now_s >= self._next_line_s:
            self._next_line_s = now_s + _STARTING_S
            ready = sum(record.ready_s is not None for record in self.records)
            self.log_line(f"starting ranks: {ready} of {len(self.records)} are ready")
        reported = [record.reported for record in self.records]
        if all(record.is_settled for record in self.records):
            self._grace_end_s = math.inf
            if self._keep and all(kind is Kind.PASSED for kind in reported):
                self._stage = _Stage.BETWEEN
                self._deadline_s = math.inf
            else:
                self.watchers.tell(lambda watcher: watcher.ranks_settled())
                self._instruct(FinishWorld(), _Stage.FINISHING)
        elif Kind.SKIPPED in reported:
            self._grace_end_s = min(self._grace_end_s, now_s + _SKIP_GRACE_S)

    def _instruct(self, instruction: Instruction, stage: _Stage) -> None:
        self._stage = stage
        for record in self.records:
            record.instruct(instruction)

    def _stop(self, kind: Kind, now_s: float, stacks_limit_s: float | None) -> None:
        """Kill all running ranks. First ask those that the others wait for to send their stacks."""
        running = [record for record in self.records if not record.has_ended]
        for record in running:
            record.stop(kind, now_s)
        if stacks_limit_s is not None:
            wanted = [
                record
                for record in running
                if not (record.is_settled if self._stage is _Stage.RUNNING else record.is_done)
            ]
            # What a rank has answered before stays: it may be unable to answer again.
            self.stacks = ask_for_stacks(self, wanted, stacks_limit_s) | self.stacks
        self._stage = _Stage.KILLED
        self._grace_end_s = math.inf
        self._deadline_s = time.monotonic() + _KILL_LIMIT_S
        self._launcher.signal([record.rank for record in running], signal.SIGKILL)
