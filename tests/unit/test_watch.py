"""Limits for code that runs in the runner itself: which code they interrupt, and which not."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator

import pytest

from dist_testing.core.bazel.watch import LIMIT_SIGNAL, Watch


class TimeOverError(Exception):
    """The limit was reached."""


@pytest.fixture
def watch() -> Iterator[Watch]:
    """A watch whose signals the tests send."""
    before = signal.getsignal(LIMIT_SIGNAL)
    yield Watch()
    signal.signal(LIMIT_SIGNAL, before)


def test_a_limit_that_is_reached_ends_the_body_and_names_its_line(watch: Watch) -> None:
    """If this fails, a test that waits for ever takes all the target's time."""
    with pytest.raises(TimeOverError, match="in test_a_limit_that_is_reached"), watch.until(0.0, TimeOverError):
        signal.raise_signal(LIMIT_SIGNAL)


def test_a_late_signal_does_not_interrupt_the_next_body(watch: Watch) -> None:
    """If this fails, the next test fails for the time that the last one took."""
    with watch.until(time.monotonic() + 60.0, TimeOverError):
        signal.raise_signal(LIMIT_SIGNAL)
    signal.raise_signal(LIMIT_SIGNAL)


def test_a_child_of_a_test_has_no_limit(watch: Watch) -> None:
    """If this fails, a forked child unwinds through pytest and reports the runner's cases a second time."""
    with watch.until(0.0, TimeOverError):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.raise_signal(LIMIT_SIGNAL)
                with watch.until(0.0, TimeOverError):
                    signal.raise_signal(LIMIT_SIGNAL)
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0


def test_the_watchdog_is_asked_for_one_signal_at_a_time(watch: Watch) -> None:
    """If this fails, a limit has no signal, or a signal for an ended limit interrupts the runner."""
    reminders: list[float] = []
    watch.remind = reminders.append
    end_s = time.monotonic() + 60.0
    with watch.until(end_s, TimeOverError), watch.paused():
        pass
    assert reminders == [end_s, math.inf, end_s, math.inf]
