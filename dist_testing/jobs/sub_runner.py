"""A sub-runner: a fork of the runner that runs units of the session, and sends all reports to the runner."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn

import pytest

from dist_testing.core.engine.engine import Engine
from dist_testing.core.events.event import Event, ForkServerMemory, RankOutput, WorldEnded
from dist_testing.core.events.stream import EventStream
from dist_testing.core.ground.add_ons import add_ons
from dist_testing.core.ground.errors import DistTestingError, InterruptedRunError, LaunchError, UsageError
from dist_testing.core.ground.outcomes import exit_name
from dist_testing.core.process import wire
from dist_testing.core.pytest.fork_capture import restart_capture
from dist_testing.core.pytest.reports import failed_outside
from dist_testing.jobs.claims import Claims
from dist_testing.jobs.messages import (
    MESSAGES,
    Began,
    Done,
    Ended,
    Finished,
    Happened,
    Message,
    Printed,
    Raised,
    Reported,
    Said,
    Unable,
)
from dist_testing.jobs.serial import report_text, warned

# The hooks by which plugins learn what has happened. In a session they belong to the runner, which calls them.
_LOG_HOOKS = (
    "pytest_runtest_logstart",
    "pytest_runtest_logreport",
    "pytest_runtest_logfinish",
    "pytest_warning_recorded",
)


class SubRunner:
    """Runs units until none is left. Make it, and call `run`, in the fork."""

    def __init__(
        self,
        number: int,
        channel: socket.socket,
        session: pytest.Session,
        units: Sequence[Sequence[int]],
        claims: Claims,
        engine: Engine,
        *,
        shows_output: bool,
    ) -> None:
        """Take over the session.

        Args:
            number: Number of the sub-runner, from 0.
            channel: Its end of the connection to the runner.
            session: pytest's session, with its items.
            units: Places of the items in each unit.
            claims: Who runs which unit.
            engine: The runner's, which has made no process yet. In this process it becomes the sub-runner's own.
            shows_output: Whether the runner shows the ranks' output at once.
        """
        self._number = number
        self._channel = channel
        self._session = session
        self._units = units
        self._claims = claims
        self._engine = engine
        self._pid = os.getpid()
        # The present one, or the last one; before the first, any that the runner knows as ours.
        self._item = units[0][0]
        self._is_sending = False
        # The signal that came while a message was on its way.
        self._late_signal = 0
        self._is_stopping = False
        events = EventStream()
        events.subscribe(self._send_event, WorldEnded, ForkServerMemory, name="the runner", is_essential=True)
        if shows_output:
            events.subscribe(self._send_output, RankOutput, name="the runner's live output", is_essential=True)
        engine.events = events
        engine.tell = lambda line: self._send(Said(self._item, line))

    def run(self, forks: int) -> NoReturn:
        """Run units, end all processes, and exit. `forks` is the number of ranks that it will fork, if it is known."""
        code = 1
        try:
            self._become()
            # Such as the measurement of its code.
            services = [add_on.load("process")() for add_on in add_ons() if "process" in add_on.more]
            for service in services:
                service.start()
            try:
                self._serve(forks)
                # The rest is the clean-up, which a signal would only break.
                self._is_stopping = True
                self._tear_down()
            finally:
                self._engine.close()
            for service in services:
                service.close()
            self._send(Finished())
            code = 0
        except BaseException:
            with contextlib.suppress(OSError):
                self._send(Raised(self._item, "error", traceback.format_exc(), None))
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _become(self) -> None:
        """Leave the terminal, the captured output and the plugins that report to the runner."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        config = self._session.config
        restart_capture(config)
        for name in _LOG_HOOKS:
            hook: Any = getattr(config.hook, name)
            for plugin in {id(impl.plugin): impl.plugin for impl in hook.get_hookimpls()}.values():
                hook._remove_plugin(plugin)
        config.pluginmanager.register(self, "dist_testing_sub_runner")

    def _stop(self, number: int, _: FrameType | None) -> None:
        """Handle a signal of the terminal, of Bazel or of the runner: end as soon as the message on its way is sent."""
        if os.getpid() != self._pid:
            # A process that a test has forked.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if self._is_sending:
            self._late_signal = number
        elif not self._is_stopping:
            self._is_stopping = True
            raise InterruptedRunError(f"the runner got {exit_name(-number)}")

    def _send(self, message: Message) -> None:
        if os.getpid() != self._pid:
            # A rank has inherited this object, and so has a process that a test has forked.
            return
        self._is_sending = True
        try:
            wire.send(self._channel, MESSAGES, message)
        finally:
            self._is_sending = False
        if self._late_signal:
            number, self._late_signal = self._late_signal, 0
            self._stop(number, None)

    def _send_event(self, event: Event) -> None:
        self._send(Happened(self._item, json.dumps(event.to_wire(), default=str)))

    def _send_output(self, event: RankOutput) -> None:
        self._send(Printed(self._item, event.rank, event.line))

    def _serve(self, forks: int) -> None:
        def raised(kind: str, text: str, code: int | None = None) -> None:
            self._send(Raised(self._item, kind, text, code))

        try:
            try:
                self._engine.prepare(forks)
            except (LaunchError, UsageError) as error:
                self._send(Unable(str(error)))
                return
            while (unit := self._claims.take(self._number)) is not None:
                if not self._run_unit(self._units[unit]):
                    return
        except InterruptedRunError:
            return
        except pytest.exit.Exception as error:
            raised("exit", str(error.msg), error.returncode)
        except KeyboardInterrupt as error:
            raised("interrupt", str(error))

    def _run_unit(self, unit: Sequence[int]) -> bool:
        """Run the items of a unit; return whether the session goes on."""
        items, session = self._session.items, self._session
        for place, following in zip(unit, [*unit[1:], None], strict=True):
            self._item = place
            # After the unit, what the session shares stays, and nothing else. pytest only asks for the nodes above.
            then: Any = items[following] if following is not None else session
            session.config.hook.pytest_runtest_protocol(item=items[place], nextitem=then)
            stop = str(session.shouldfail or session.shouldstop or "")
            self._send(Done(place, stop))
            if stop:
                return False
        return True

    def _tear_down(self) -> None:
        """Tear down the fixtures of the session, and report an error as one of the last item."""
        setup_state: Any = self._session._setupstate
        try:
            setup_state.teardown_exact(None)
        except Exception:
            item = self._session.items[self._item]
            shown = item.repr_failure(pytest.ExceptionInfo.from_current())
            text = f"{item.nodeid}: after the last test, the teardown of a fixture failed.\n{shown}"
            self._report(failed_outside(item, DistTestingError(text), "teardown"))

    def _report(self, report: pytest.TestReport) -> None:
        self._send(Reported(self._item, time.monotonic(), report_text(self._session.config, report)))

    def pytest_runtest_logstart(self) -> None:
        """Send that the item begins."""
        self._send(Began(self._item, time.monotonic()))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send a report."""
        if report.failed and not hasattr(report, "wasxfail") and self._session.config.getvalue("maxfail") == 1:
            # The runner stops here. Units are claimed in their order, so no earlier one is left.
            self._claims.withdraw()
        self._report(report)

    def pytest_runtest_logfinish(self) -> None:
        """Send that the item has been reported."""
        self._send(Ended(self._item, time.monotonic()))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, location: tuple[str, int, str] | None
    ) -> None:
        """Send a warning."""
        self._send(warned(self._item, warning_message, when, location))
