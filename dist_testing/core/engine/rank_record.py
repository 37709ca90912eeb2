"""Keeps the messages and the end of one rank, and derives its outcome from both."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import socket
import time
from collections.abc import Callable, Sequence

from dist_testing.core.engine.crash_text import handled_signal
from dist_testing.core.ground.case import Warned
from dist_testing.core.ground.errors import FrameError
from dist_testing.core.ground.outcomes import GOOD, Kind, RankOutcome, exit_name
from dist_testing.core.ground.procfs import is_ending, status_of
from dist_testing.core.process import wire
from dist_testing.core.process.board import PhaseBoard
from dist_testing.core.process.rank_messages import (
    INSTRUCTIONS,
    RANK_MESSAGES,
    Done,
    EndSession,
    Extra,
    Importing,
    Instruction,
    NextCase,
    RankMessage,
    RankReport,
    Ready,
)
from dist_testing.core.process.stacks import STACKS_SIGNAL

# The worst of several reports of one rank counts: a teardown can fail after the test has passed.
# A broken report after a reported failure adds nothing.
WORST_LAST = (Kind.PASSED, Kind.SKIPPED, Kind.UNREADABLE, Kind.NEVER_STARTED, Kind.RAISED, Kind.EXITED)
# Limit of further failures per rank and case: a loop of sub-tests can fail any number of times.
_MAX_FURTHER = 20
# The runner keeps at most this many distinct warnings per rank and case: a rank can make up any number.
_MAX_WARNINGS = 100


def worst_of(known: RankOutcome | None, told: RankOutcome, weigh: Callable[[RankOutcome], int]) -> RankOutcome:
    """Combine the reports of a rank: return the worst, or the first of equals, with the other failures.

    `weigh` returns how bad an outcome is; usually its place in `WORST_LAST`.
    """
    if known is None:
        return told
    worst, other = (told, known) if weigh(told) > weigh(known) else (known, told)
    if weigh(other) < WORST_LAST.index(Kind.RAISED):
        return worst
    further = (*known.further, dataclasses.replace(other, further=(), more_count=0))
    more_count = known.more_count
    # Beyond the limit this keeps only failures of a new kind: the verdict may depend on them.
    if len(further) > _MAX_FURTHER and _likeness(other) in map(_likeness, known.further):
        further, more_count = known.further, more_count + 1
    return dataclasses.replace(worst, further=further, more_count=more_count)


def _likeness(outcome: RankOutcome) -> tuple[object, ...]:
    return outcome.kind, outcome.phase, outcome.types, outcome.expected_by


def unkillable(records: Sequence[RankRecord], limit_s: float) -> str:
    """Return the text about ranks of a world that SIGKILL has not ended after `limit_s` seconds."""
    ranks = ", ".join(
        f"{record.rank} (pid {record.pid}, {record.kernel_state or 'state unknown'})"
        for record in records
        if not record.has_ended
    )
    return (
        f"Rank(s) {ranks} could not be killed within {limit_s:.0f} s.\n"
        "A process that survives SIGKILL is waiting inside the kernel, most often for a device or a network disk.\n"
        "See what it waits for with `ps -o pid,stat,wchan -p PID`; the machine may have to be restarted."
    )


# The test body has begun in these phases: an exit that a case expects must happen in one of them.
_PHASES_OF_EXITS = ("call", "teardown", "destroy")


class RankRecord:
    """Holds the state of one rank as the runner knows it.

    Attributes:
        rank: Number of the rank.
        pid: Its process; None until it is known.
        channel: The runner's end of the channel; closed at the end of the stream.
        started_s: When the runner learned of the process, on the monotonic clock; None before that.
        ready_s: When the rank was ready, on the monotonic clock; None before. The limit of the case starts when all
            ranks are.
        is_done: Whether it has sent its last message.
        first_trouble_s: When the runner saw the first sign of a failure, on the monotonic clock; None if it saw none.
        ended_s: When the runner saw the end of the process, on the monotonic clock; None before that.
        warnings: The warnings of this case, in order, each once.
        end_session: Why the rank wants no further test to run; "" if it does not.
        extras: Messages for add-ons that no watcher has got yet.
        is_stopped_on_purpose: Whether the case itself has stopped the process, and has not let it go on.
        was_left_stopped: Whether it has stood still until the end of the case, so that the runner is about to kill it.
        ignores_exits: Whether no end of the process is a sign of a failure in this case. The outcome still says how it
            ended, and the caller judges that.
    """

    def __init__(self, rank: int, channel: socket.socket, board: PhaseBoard) -> None:
        self.rank = rank
        self._board = board
        self.pid: int | None = None
        self.channel = channel
        self.started_s: float | None = None
        self.ready_s: float | None = None
        # An import of the tests runs test code, too.
        self._has_run_tests = False
        self.is_done = False
        self.first_trouble_s: float | None = None
        self.ignores_exits = False
        self._reader = wire.MessageReader(RANK_MESSAGES)
        self._report: RankOutcome | None = None
        self._expected_exit: int | None = None
        self._exit_0_passes = False
        self._exit_code: int | None = None
        self._lost_by = ""
        self._handled_signal: int | None = None
        self.ended_s: float | None = None
        self._stopped_as: Kind | None = None
        self._stopped_in = ""
        self.warnings: dict[Warned, None] = {}
        self.end_session = ""
        self._is_finishing = False
        self._has_hung_up = False
        self.extras: list[Extra] = []
        self.is_stopped_on_purpose = False
        self.was_left_stopped = False

    def begin_case(self, expected_exit: int | None, *, exit_0_passes: bool = False) -> None:
        """Forget the outcome of the last case. The arguments are as in `Case`; None if the process must not end."""
        self._report = None
        self.warnings = {}
        self._expected_exit = expected_exit
        self._exit_0_passes = exit_0_passes
        self.ignores_exits = False

    def read(self, now_s: float) -> bool | None:
        """Read the messages in the channel. Return False at the end of the stream, None if nothing has come."""
        try:
            data = self.channel.recv(1 << 18, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            data = b""
        if not data:
            self._hang_up(now_s)
            return False
        try:
            for message in self._reader.feed(data):
                self._take(message, now_s)
        except FrameError as error:
            self.unreadable(now_s, str(error))
            self.channel.close()
            return False
        return True

    def instruct(self, instruction: Instruction) -> None:
        """Send an instruction to the waiting rank."""
        self._is_finishing = not isinstance(instruction, NextCase)
        # If the rank has died, the runner will see its end.
        with contextlib.suppress(OSError):
            wire.send(self.channel, INSTRUCTIONS, instruction)

    def answer(self, add_on: str, payload: str) -> None:
        """Answer a question to an add-on. The runner does not wait for a rank that reads no answers."""
        # If the rank has died, the runner will see its end.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            answer = wire.frame(INSTRUCTIONS, Extra(add_on, payload))
            try:
                is_whole = self.channel.send(answer, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) == len(answer)
            except BlockingIOError:
                is_whole = False
            if not is_whole:
                self.unreadable(time.monotonic(), "it asks the runner and does not read the answers")

    def ended(self, exit_code: int, now_s: float, reason: str = "") -> None:
        """Note the end of the process. A negative code is a signal, as in `subprocess`.

        `reason` says why the runner has lost the rank, as in `RankEnded`.
        """
        self._exit_code = exit_code
        self._lost_by = reason
        self.ended_s = now_s
        # The socket may still hold the last messages, but no end of stream: a child of the rank can keep it open.
        while self.channel.fileno() >= 0 and self.read(now_s) is not None:
            continue
        if self.channel.fileno() >= 0:
            self._hang_up(now_s)
        is_expected = exit_code == 0 if self._expected_exit is None else self.ended_as_expected
        if self._stopped_as is None and not self.ignores_exits and not is_expected:
            self._trouble(now_s)

    def stop(self, kind: Kind, now_s: float) -> None:
        """Note that the runner is about to kill the rank, and why: STOPPED or HUNG.

        Later reports do not count: the request for stacks can wake the rank up. An end that has begun is the rank's
        own. On a busy machine the runner learns of it seconds after the end of the channel.
        """
        if self._exit_code is None and self._stopped_as is None and not is_ending(self.pid):
            self._stopped_as = kind
            self._stopped_in = self.phase
            if kind is Kind.HUNG:
                self._handled_signal = handled_signal(self.pid)
                self._trouble(now_s)

    @property
    def phase(self) -> str:
        """The current phase of the rank, or its phase when it was stopped."""
        return self._stopped_in or self._board.read(self.rank)

    @property
    def has_begun_test(self) -> bool:
        """Whether the body of the test has begun, or even ended."""
        return self.phase in _PHASES_OF_EXITS

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._exit_code is not None

    @property
    def ended_as_expected(self) -> bool:
        """Whether the process has ended in the way that the case expects."""
        was_left = self.was_left_stopped and self._exit_code == -signal.SIGKILL
        return was_left or self._is_expected(self._exit_code, self.phase) or self._has_passed_by_exit

    @property
    def is_left_stopped(self) -> bool:
        """Whether the process stands still on purpose, and the case expects that it does so until its end."""
        expects = self.is_stopped_on_purpose and self._expected_exit == -signal.SIGSTOP
        return expects and not self.has_ended and self._report is None and self.phase in _PHASES_OF_EXITS

    @property
    def _has_passed_by_exit(self) -> bool:
        """Whether the exit code alone is a pass: the code of a program that has begun."""
        counts = self._exit_0_passes and self._expected_exit is None
        return counts and self._exit_code == 0 and self.phase in _PHASES_OF_EXITS

    def _is_expected(self, exit_code: int | None, phase: str) -> bool:
        """Return whether the case expects this exit: one before the test body tests nothing, whatever its code is."""
        return exit_code is not None and exit_code == self._expected_exit and phase in _PHASES_OF_EXITS

    @property
    def reported(self) -> Kind | None:
        """The worst outcome that the rank itself has reported in this case."""
        return self._report.kind if self._report else None

    @property
    def is_settled(self) -> bool:
        """Whether the rank has reported, or ended as it should, in this case."""
        is_over = self.ended_as_expected or self.is_left_stopped
        return self._report is not None or is_over or (self.ignores_exits and self.has_ended)

    @property
    def kernel_state(self) -> str:
        """The kernel's state of the process, such as "T (stopped)"; "" if it is not known."""
        return status_of(self.pid, "State")

    @property
    def has_told_all(self) -> bool:
        """Whether the outcome is final: the rank has ended, or waits after a good report."""
        return self.has_ended or self.reported in GOOD

    @property
    def waited_in_vain(self) -> bool:
        """Whether the rank failed because it waited for a peer in vain; then the stack of that peer matters."""
        return self._report is not None and self._report.collateral == "late"

    @property
    def has_lost_a_peer(self) -> bool:
        """Whether the rank failed because a peer went away; that peer may not have told why yet."""
        return self._report is not None and self._report.collateral == "lost"

    def outcome(self) -> RankOutcome:
        """Return the outcome of the rank. Call it when the case is over."""
        report = self._report
        at_s = self.first_trouble_s or self.ended_s or 0.0
        if report is not None and report.kind is Kind.EXITED and self._is_expected(report.exit_code, report.phase):
            return RankOutcome(self.rank, Kind.PASSED, at_s, self.phase)
        if report is not None and report.kind not in GOOD:
            # The failure counts. The later end of the process adds nothing, nor does a kill during clean-up.
            return report
        if self._expected_exit is not None and self._stopped_as is None:
            return self._expected_outcome(self._expected_exit, at_s)
        if self._stopped_as is not None:
            return self._stopped_outcome(self._stopped_as, at_s)
        if self._exit_code is None and report is not None:
            # The worker pool keeps the rank for the next case.
            return report
        if self._exit_code is None or not self._has_run_tests:
            how = "" if self._exit_code is None else f"its process ended by {exit_name(self._exit_code)}"
            return RankOutcome(self.rank, Kind.NEVER_STARTED, at_s, self.phase, summary=how)
        if self._exit_code < 0:
            number, lost_by = -self._exit_code, self._lost_by
            return RankOutcome(self.rank, Kind.SIGNALLED, at_s, self.phase, signal=number, summary=lost_by)
        if report is None and self._has_passed_by_exit:
            return RankOutcome(self.rank, Kind.PASSED, at_s, self.phase)
        if self._exit_code > 0 or not self.is_done or report is None:
            lost_by = self._lost_by
            return RankOutcome(self.rank, Kind.EXITED, at_s, self.phase, exit_code=self._exit_code, summary=lost_by)
        return report

    def _stopped_outcome(self, stopped_as: Kind, at_s: float) -> RankOutcome:
        code = self._exit_code
        if code is not None and code < 0 and -code not in (signal.SIGKILL, STACKS_SIGNAL):
            # The rank crashed before the runner killed it.
            return RankOutcome(self.rank, Kind.SIGNALLED, self.ended_s or at_s, self.phase, signal=-code)
        if self._has_hung_up:
            how = "it closed its channel to the runner and went on"
            return RankOutcome(self.rank, Kind.UNREADABLE, at_s, self.phase, summary=how)
        if self._report is not None and (
            stopped_as is Kind.STOPPED or self.is_done or not (self._is_finishing or self.phase == "destroy")
        ):
            # The rank had ended its test and only waited for the others.
            return self._report
        handled = self._handled_signal
        where = "" if handled is None else f"at the deadline, probably blocked in the handler of {exit_name(-handled)}"
        return RankOutcome(self.rank, stopped_as, at_s, self.phase, summary=where)

    def _expected_outcome(self, expected: int, at_s: float) -> RankOutcome:
        if self.ended_as_expected:
            return RankOutcome(self.rank, Kind.PASSED, at_s, self.phase)
        if self._exit_code == expected:
            how = "did so before the test began"
        elif self._exit_code is None or self.is_done:
            how = f"ended the test ({self._report.describe()})" if self._report else "did not end"
        else:
            how = f"ended by {exit_name(self._exit_code)}"
        wanted = f"AssertionError: expected to end by {exit_name(expected)}, but it {how}"
        return RankOutcome(self.rank, Kind.RAISED, at_s, self.phase, summary=wanted)

    def _take(self, message: RankMessage, now_s: float) -> None:
        match message:
            case Importing():
                self._has_run_tests = True
            case Ready():
                self.ready_s = self.ready_s or now_s
                self._has_run_tests = True
            case RankReport():
                self._note(RankOutcome.of(self.rank, message.kind, now_s, message.phase, message))
            case Warned():
                if len(self.warnings) < _MAX_WARNINGS:
                    # Equal warnings, such as from a loop, count once.
                    self.warnings[message] = None
            case Extra():
                self.extras.append(message)
            case EndSession():
                self.end_session = message.reason
            case Done():
                self.is_done = True

    def unreadable(self, now_s: float, text: str) -> None:
        """Note that a message of the rank cannot be read, and why."""
        summary = text.partition("\n")[0]
        self._note(RankOutcome(self.rank, Kind.UNREADABLE, now_s, self.phase, summary=summary, text=text))

    def _note(self, told: RankOutcome) -> None:
        if self._stopped_as is not None:
            return
        if self._weight(told) > WORST_LAST.index(Kind.SKIPPED):
            self._trouble(told.at_s)
        if self.first_trouble_s is not None:
            told = dataclasses.replace(told, at_s=self.first_trouble_s)
        self._report = worst_of(self._report, told, self._weight)

    def _hang_up(self, now_s: float) -> None:
        """Note that the channel has reached its end."""
        self.channel.close()
        if self._reader.is_inside:
            self.unreadable(now_s, "the last message is incomplete")
        # If the case expects the process to end, only the exit code decides.
        is_open = self._expected_exit is None and not self._exit_0_passes
        if not self.is_done and is_open and self._stopped_as is None and not self.ignores_exits:
            self._has_hung_up = True
            self._trouble(now_s)

    def _weight(self, told: RankOutcome) -> int:
        """Return how bad a report is. An expected exit weighs as little as a pass."""
        if told.kind is Kind.EXITED and (self.ignores_exits or self._is_expected(told.exit_code, told.phase)):
            return 0
        return WORST_LAST.index(told.kind)

    def _trouble(self, now_s: float) -> None:
        if self.first_trouble_s is None:
            self.first_trouble_s = now_s
