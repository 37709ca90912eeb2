"""Looks at the ranks of a running case while they do nothing, and finds out whether they can ever go on.

Every look costs a rank some milliseconds of a thread that does nothing else, so the cheap question comes first: the
kernel knows which rank has used the CPU. The ledgers are asked for when no rank has, and again a moment later. A hang
is proven if both times no rank could go on, and if nothing has changed in between. Nothing may be on the way between
them either: no rank has written, and then each thread of each rank was seen asleep.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dist_testing.core.engine.hooks import CaseStart, EndCase, WatchedWorld, WorldWatcher
from dist_testing.core.engine.rank_record import RankRecord
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.errors import MessageError
from dist_testing.core.ground.outcomes import Kind, verdict
from dist_testing.core.ground.procfs import stat_of, threads_of, writes_of
from dist_testing.hang.analysis import Analysis, RankView, analyse
from dist_testing.hang.ledger import ANSWER_MARK, FOR_CALLS, LEDGERS, Ledger, LedgerAnswer, NoLedger, limits_of
from dist_testing.hang.story import (
    HangStory,
    blame_by_ledger,
    lines_of,
    mark_stuck,
    rank_ledgers,
    story_of,
)

# Between two looks at the CPU time, and between the two looks at the ledgers. The kernel counts in steps of 10 ms.
# Seconds.
_PAUSE_S = 0.25
# After a look that found a thread awake. Seconds.
_SHORT_PAUSE_S = 0.03
# After a look that proved nothing. Seconds.
_LONG_PAUSE_S = 0.5
# How long a wait that is presumed must last. Seconds.
_PRESUMED_S = 5.0
# Between two questions while ranks work. Seconds.
_RARE_PAUSE_S = 2.0
# For the answers of all ranks. A rank whose main thread is blocked answers in milliseconds. Seconds.
_ANSWER_LIMIT_S = 0.2
# Between two looks, the threads of gloo that look for work every 10 ms use next to nothing; a rank that works uses
# more. Steps of the kernel's clock.
_IDLE_TICKS = 1
# For the ledgers of all ranks at the deadline: a rank that holds the GIL for long does not answer. Seconds.
_LEDGERS_S = 0.5
_ASLEEP = "S"
_PACKET_BYTES = 1 << 16


def watch(world: WatchedWorld) -> DeadlockDetector | None:
    """Return the watch of a world; None for threads, which find out themselves who waits for whom."""
    return None if world.in_process_of else DeadlockDetector(world)


class _Activity(NamedTuple):
    ticks: int  # CPU time that a process has used until now, in ticks of the kernel's clock
    state: str  # of its main thread, such as "S"


class DeadlockDetector(WorldWatcher):
    """Watches one world for hangs."""

    def __init__(self, world: WatchedWorld) -> None:
        # What the last look at the ledgers said, as long as the case runs; None before the first look.
        self.latest: HangStory | None = None
        # Why the ranks of the case waited for each other, if it is known.
        self.story: HangStory | None = None
        super().__init__(world)
        self._records = world.records
        self._fds = world.stacks_fds
        self._limits_ms = limits_of(world.group_limit_s)
        self._start: CaseStart | None = None
        self._requests = 0
        # The ranks that gave no answer to the last request.
        self._silent: set[int] = set()

    @property
    def is_on(self) -> bool:
        """Whether the ranks alone decide how the case goes on, and none of them has failed."""
        # A wait for a rank that must die can be meant.
        expects_exits = self._start is not None and bool(self._start.case.expected_exits)
        return (
            self._world.is_undisturbed
            and not expects_exits
            and not any(record.ignores_exits or record.first_trouble_s is not None for record in self._records)
        )

    def begin_case(self, start: CaseStart) -> None:
        """Forget the last case."""
        self._start = start
        self.latest = self.story = None
        self.headline = ""
        self._before: dict[int, _Activity] = {}
        self._first: list[RankView] | None = None
        self._first_s = 0.0
        self._awake: set[str] | None = None
        self._writes: list[bytes] = []
        self._asked_s = -math.inf
        self.next_s = time.monotonic() + _PAUSE_S

    def poll(self, now_s: float) -> EndCase | None:
        """Look, if it is time. End the case if a hang is proven."""
        if self._world.is_running and not self._world.is_undisturbed:
            # What ranks waited for before a fault on purpose says nothing of the time after it.
            self.latest = None
        if now_s < self.next_s:
            return None
        if not self.is_on or all(record.is_settled for record in self._records):
            self.next_s = now_s + _PAUSE_S if self._world.is_running else math.inf
            return None
        if not self.look(now_s):
            return None
        self._tell(self.latest)
        # If ranks have skipped, the skip is the failure, and the other ranks are only stopped.
        skips = any(record.reported is Kind.SKIPPED for record in self._records)
        return EndCase(kind=Kind.STOPPED if skips else Kind.HUNG)

    def before_kill(self, kind: Kind) -> None:
        """Ask the ranks at the deadline what they wait for."""
        if kind is Kind.HUNG and self.is_on:
            self.ask(_LEDGERS_S)
            self._tell(self.latest)

    def case_over(self) -> None:
        """Keep what the last look has found, if a rank has waited in vain since, or if NCCL may have ended one."""
        has_failed = any(record.first_trouble_s is not None for record in self._records)
        views = self.latest.analysis.views.values() if self.latest is not None else ()
        on_device = any(view.ledger is not None and view.ledger.device_calls for view in views)
        if (has_failed and on_device) or any(record.waited_in_vain for record in self._records):
            self._tell(self.story or self.latest)

    def _tell(self, story: HangStory | None) -> None:
        self.story = story
        self.headline = story.headline if story is not None else ""

    def explain(self, result: CaseResult) -> CaseResult:
        """Tell the story in the verdict, the notes and the ledgers."""
        story = self.story
        if story is None:
            return result
        found, outcomes = result.verdict, mark_stuck(result.outcomes, story)
        if outcomes != result.outcomes:
            found = verdict(outcomes, leaked=result.leaked, left=result.left)
        return dataclasses.replace(
            result,
            outcomes=outcomes,
            verdict=blame_by_ledger(found, outcomes, story),
            notes=(*lines_of(story.analysis), *result.notes),
            ledgers=rank_ledgers(story.analysis),
        )

    def look(self, now_s: float) -> bool:
        """Look at the ranks. Return whether a hang is proven; then `latest` tells it."""
        activity = _activity(self._records)
        idle = self._idle(activity)
        self._before = activity
        self.next_s = now_s + _PAUSE_S
        if len(idle) < len(self._records):
            self._first = None
            if now_s >= self._asked_s + _RARE_PAUSE_S:
                # Proves nothing, and tells later what ranks waited for, also in a call on a device that uses the CPU.
                self.ask(_ANSWER_LIMIT_S)
            return False
        analysis = self.ask(_ANSWER_LIMIT_S)
        # What the answers have cost is not the ranks' work.
        self._before = _activity(self._records)
        self.next_s = time.monotonic() + _PAUSE_S
        views = list(analysis.views.values())
        if not analysis.is_proven:
            self._first = None
            self.next_s += _LONG_PAUSE_S - _PAUSE_S
        elif views != self._first:
            self._first, self._first_s = views, now_s
            self._awake = None
            self._is_asleep()
        elif now_s < self._first_s + _PRESUMED_S and any(one.wait.is_presumed for one in analysis.waiting.values()):
            self._is_asleep()
        elif self._is_asleep():
            return True
        else:
            self.next_s = time.monotonic() + _SHORT_PAUSE_S
        return False

    def _is_asleep(self) -> bool:
        """Whether every thread of every rank has been seen asleep since the first look, and since the last write.

        Threads of gloo wake up every 10 ms, and on a busy machine they wait for a CPU most of that time. A thread that
        was asleep at one moment had nothing left to do at that moment. It gets more to do only if a thread calls
        write(2), as for each message of gloo and each answer of a store; answers to the runner take send(2).
        """
        awake = {thread for record in self._records for thread in _awake(record.pid)}
        # After the threads: none of them may have passed a message on to one that was seen before it.
        writes = [writes_of(record.pid) for record in self._records]
        if writes != self._writes:
            self._writes, self._awake = writes, None
        else:
            self._awake = awake if self._awake is None else self._awake & awake
        return self._awake == set()

    def ask(self, limit_s: float) -> Analysis:
        """Ask all ranks for their ledgers now, for `limit_s` seconds, and note what they say as `latest`."""
        self._asked_s = time.monotonic()
        self._requests = (self._requests + 1) % FOR_CALLS
        ledgers = collect_ledgers(self._fds, self._requests, limit_s)
        views = []
        for record in self._records:
            ledger = ledgers.get(record.rank)
            if isinstance(ledger, Ledger):
                views.append(RankView(record.rank, _how_ended(record), ledger))
            else:
                why = ledger.reason if isinstance(ledger, NoLedger) else f"its state is {record.kernel_state or '?'}"
                views.append(RankView(record.rank, _how_ended(record), None, f"gave no answer ({why})"))
        analysis = analyse(views, self._limits_ms)
        if analysis.is_proven or not self._is_late(analysis):
            self.latest = story_of(analysis)
        return analysis

    def _is_late(self, analysis: Analysis) -> bool:
        """Whether a rank has given up a wait since the last look: it no longer is in the test, and says so soon.

        It also has if it was in the test and is silent for the first time, at work: pytest parses the files of torch
        for the text of its error, and that keeps the GIL.
        """
        before = self.latest.analysis.views if self.latest is not None else {}
        at_work = {one.rank for one in self._records if one.kernel_state.startswith("R")}
        silent = {rank for rank, view in analysis.views.items() if view.ledger is None}
        gave_up = {rank for rank, view in analysis.views.items() if view.ledger is not None and not view.place}
        gave_up |= (silent & at_work) - self._silent
        self._silent = silent
        return any(before[rank].place and not analysis.views[rank].ended for rank in gave_up & before.keys())

    def _idle(self, activity: Mapping[int, _Activity]) -> list[int]:
        """The ranks that have done nothing since the last look."""
        return [
            rank
            for rank, seen in activity.items()
            if rank in self._before
            and seen.state == self._before[rank].state == _ASLEEP
            and seen.ticks - self._before[rank].ticks <= _IDLE_TICKS
        ]


def collect_ledgers(fds: Mapping[int, int], number: int, limit_s: float) -> dict[int, LedgerAnswer]:
    """Ask ranks for their ledgers, or for their calls, by their sockets; return the answers that have come, by rank.

    `number` is that of this request, 0 to 255, with `FOR_CALLS` as a bit: late answers to an earlier one do not count.
    All ranks together have `limit_s` seconds.
    """
    mark = bytes([number])
    poller = select.poll()
    waiting = {}
    for rank, fd in fds.items():
        # Its end may be closed, and a rank that reads nothing has a full queue.
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionError):
            os.write(fd, mark)
            waiting[fd] = rank
            poller.register(fd, select.POLLIN)
    answers: dict[int, LedgerAnswer] = {}
    end_s = time.monotonic() + limit_s
    while waiting and (left_s := end_s - time.monotonic()) > 0:
        for fd, _ in poller.poll(math.ceil(1000 * left_s)):
            try:
                packet = os.read(fd, _PACKET_BYTES)
            except BlockingIOError:
                continue
            except ConnectionError:
                packet = b""
            # Anything else is an answer that came too late, or a stack.
            is_answer = packet.startswith(ANSWER_MARK + mark)
            if is_answer:
                try:
                    answers[waiting[fd]] = LEDGERS.from_wire(packet[len(ANSWER_MARK) + 1 :])
                except MessageError as error:
                    answers[waiting[fd]] = NoLedger(f"its answer cannot be read: {str(error).partition(chr(10))[0]}")
            if is_answer or not packet:
                poller.unregister(fd)
                del waiting[fd]
    return answers


def _how_ended(record: RankRecord) -> str:
    if not record.is_settled:
        return ""
    return "skipped" if record.reported is Kind.SKIPPED else "ended the test"


def _activity(records: Sequence[RankRecord]) -> dict[int, _Activity]:
    """Rank to what the kernel says of it, of ranks that it knows."""
    known = {record.rank: stat_of(record.pid) for record in records}
    # proc(5): utime and stime are the 14th and the 15th field, the state is the third.
    return {rank: _Activity(int(stat[11]) + int(stat[12]), stat[0]) for rank, stat in known.items() if stat}


def _awake(pid: int | None) -> Iterator[str]:
    """The threads of a process that run, are about to, or wait for a device."""
    threads = threads_of(pid)
    if not threads:
        # Unknown, so it counts as awake.
        yield str(pid)
    for thread in threads:
        stat = stat_of(pid, thread)
        if not stat or stat[0] != _ASLEEP:
            yield f"{pid}/{thread}"
