"""Watches one world from its start to its end.

Waits on descriptors only: the template's socket and every rank's channel. No polling, no sleeps; every wait has a
limit.
"""

from __future__ import annotations

import math
import select
import signal
import time
from collections.abc import Mapping, Sequence

from dist_testing.errors import LaunchError
from dist_testing.launch.fork import ForkLauncher
from dist_testing.outcomes import Kind
from dist_testing.rank.stacks import STACKS_SIGNAL
from dist_testing.runner.ranks import RankRecord
from dist_testing.runner.stack_dumps import collect_stacks

__all__ = ["PEER_GRACE_S", "Supervisor"]

# From fork to "ready" a rank does almost nothing; on a machine that swaps it still takes a while. Seconds.
_START_LIMIT_S = 60.0
# After the first failure, how long the other ranks may take to tell their side of it. Seconds.
PEER_GRACE_S = 0.5
# After the first skip. Ranks reach the same decision at different times, and nothing is broken. Seconds.
_SKIP_GRACE_S = 5.0
# After SIGKILL, until the kernel must have let go. Longer than the template takes to clear up. Seconds.
_KILL_LIMIT_S = 15.0


class Supervisor:
    """Runs one world to its end.

    Attributes:
        records: One per rank.
        stacks: Rank to its stacks, if the deadline passed.
        leaked: Command lines of what the ranks left behind.
    """

    def __init__(
        self,
        launcher: ForkLauncher,
        world: int,
        records: Sequence[RankRecord],
        stacks_fds: Mapping[int, int],
        limit_s: float,
    ) -> None:
        """Watch a world that was just asked for.

        Args:
            launcher: Who starts it.
            world: Its number.
            records: One per rank.
            stacks_fds: Rank to the descriptor that its stacks come from.
            limit_s: Seconds from when every rank is ready.
        """
        self.records = records
        self.stacks: dict[int, str] = {}
        self.leaked: list[str] = []
        self._launcher = launcher
        self._world = world
        self._stacks_fds = stacks_fds
        self._limit_s = limit_s
        self._deadline_s = time.monotonic() + _START_LIMIT_S
        self._everyone_ready = False
        self._grace_end_s = math.inf
        self._killed = False
        self._gos = 0
        self._over = False
        self._by_fd = {record.channel.fileno(): record for record in records}
        self._poller = select.poll()
        self._poller.register(launcher.fileno(), select.POLLIN)
        for fd in self._by_fd:
            self._poller.register(fd, select.POLLIN)

    def wait(self) -> None:
        """Return when every rank has ended and nothing of them is left.

        Raises:
            LaunchError: If the template ends, refuses, or cannot get rid of a rank.
        """
        while not self._over:
            limit_s = min(self._deadline_s, self._grace_end_s)
            timeout_ms = max(0, math.ceil(1000 * (limit_s - time.monotonic())))
            events = self._poller.poll(timeout_ms)
            # One look, one time: what is seen together counts as happening together.
            now_s = time.monotonic()
            for fd, _ in events:
                if fd == self._launcher.fileno():
                    self._hear_template(now_s)
                elif (record := self._by_fd.get(fd)) and not record.read(now_s):
                    self._forget(fd)
            if not self._over:
                self._decide(now_s)

    def abort(self) -> None:
        """Kill the ranks at once and wait until they are gone: the run is being interrupted."""
        if not self._over:
            self._kill(Kind.STOPPED, time.monotonic())
            self.wait()

    def _forget(self, fd: int) -> None:
        self._poller.unregister(fd)
        del self._by_fd[fd]

    def _hear_template(self, now_s: float) -> None:
        for event in self._launcher.events():
            if event["world"] != self._world:
                continue
            match event["event"]:
                case "ended":
                    record = self.records[event["rank"]]
                    fd = record.channel.fileno()
                    record.ended(event["exit_code"], now_s)
                    if fd in self._by_fd:
                        self._forget(fd)
                case "refused":
                    raise LaunchError(
                        f"Rank {event['rank']} of {len(self.records)} could not be forked: {event['text']}.\n"
                        "The machine, or the limit for this user, has no room for another process.\n"
                        "Run fewer tests at once, or ask for a smaller world."
                    )
                case "over":
                    self.leaked = event["leaked"]
                    self._over = True

    def _decide(self, now_s: float) -> None:
        records = self.records
        if not self._everyone_ready and all(record.is_ready for record in records):
            self._everyone_ready = True
            self._deadline_s = now_s + self._limit_s
        if self._killed:
            if now_s >= self._deadline_s:
                raise LaunchError(self._unkillable())
            return
        if any(record.first_trouble_s is not None for record in records):
            self._grace_end_s = min(self._grace_end_s, now_s + PEER_GRACE_S)
        elif not self._gos and any(record.reported is Kind.SKIPPED for record in records):
            self._grace_end_s = min(self._grace_end_s, now_s + _SKIP_GRACE_S)
        if self._may_pass():
            self._gos += 1
            self._grace_end_s = math.inf
            for record in records:
                record.go()
        if now_s >= self._grace_end_s:
            if any(record.waited_in_vain for record in records):
                self._ask_for_stacks()
            self._kill(Kind.STOPPED, time.monotonic())
        elif now_s >= self._deadline_s:
            self._ask_for_stacks()
            self._kill(Kind.HUNG, time.monotonic())

    def _may_pass(self) -> bool:
        """Whether every rank is at the next point where it waits for its peers (see `dist_testing.rank.frames`)."""
        if any(record.first_trouble_s is not None for record in self.records):
            return False
        if self._gos == 0:
            return all(record.reported is not None for record in self.records)
        return self._gos == 1 and all(record.is_done for record in self.records)

    def _ask_for_stacks(self) -> None:
        fds = {record.rank: self._stacks_fds[record.rank] for record in self.records if not record.has_ended}
        self.stacks = collect_stacks(fds, lambda: self._launcher.signal(list(fds), STACKS_SIGNAL))

    def _kill(self, kind: Kind, now_s: float) -> None:
        running = [record for record in self.records if not record.has_ended]
        for record in running:
            record.stop(kind, now_s)
        self._killed = True
        self._grace_end_s = math.inf
        self._deadline_s = now_s + _KILL_LIMIT_S
        self._launcher.signal([record.rank for record in running], signal.SIGKILL)

    def _unkillable(self) -> str:
        ranks = ", ".join(str(record.rank) for record in self.records if not record.has_ended)
        return (
            f"Rank(s) {ranks} could not be killed within {_KILL_LIMIT_S:.0f} s.\n"
            "A process that survives SIGKILL is waiting inside the kernel, most often for a device or a network disk.\n"
            "The machine may have to be restarted; see the process state with `ps -o pid,stat,wchan`."
        )
