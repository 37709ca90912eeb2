"""The queue in which processes wait for GPUs."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dist_testing.gpus import lease as leasing
from dist_testing.gpus.lease import Place
from tests.support.forks import forked

# One step of a history: a process comes, or the one at this position (modulo the length) goes.
_STEPS = st.lists(st.none() | st.integers(min_value=0, max_value=7), min_size=1, max_size=40)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file that all processes share."""
    path = tmp_path / "nvidiactl"
    path.touch()
    return path


@given(steps=_STEPS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_the_first_place_that_is_not_left_is_head(file: Path, steps: list[int | None]) -> None:
    """A process that asked for all GPUs would wait for ever behind processes that ask for one."""
    with contextlib.ExitStack() as left_over:
        queue: list[Place] = []

        def leave_if_queued(place: Place) -> None:
            if place in queue:
                place.leave()

        for step in steps:
            if step is None:
                place = Place.take(file)
                left_over.callback(leave_if_queued, place)
                queue.append(place)
            elif queue:
                queue.pop(step % len(queue)).leave()
            assert [place.is_head() for place in queue] == [True, *[False] * len(queue)][: len(queue)]


def test_a_child_that_was_forked_in_the_queue_does_not_stay_in_it(file: Path) -> None:
    """A helper that a test forks while its runner waits would block every GPU of the machine until it ends."""
    place = Place.take(file)
    with forked():
        place.leave()
        other = Place.take(file)
        assert other.is_head()
        other.leave()


def test_a_process_that_comes_at_the_same_moment_is_before_or_behind(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes on one place would both be head."""
    monkeypatch.setattr(time, "monotonic_ns", lambda: 1)
    queue = [Place.take(file) for _ in range(5)]
    while queue:
        assert [place.is_head() for place in queue] == [True, *[False] * len(queue)][: len(queue)]
        queue.pop(0).leave()


def test_a_process_whose_clock_is_behind_waits_for_the_head(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container with a clock of its own would never get a place, or be a second head."""
    head = Place.take(file)
    assert head.is_head()
    monkeypatch.setattr(time, "monotonic_ns", lambda: 1)
    place = Place.take(file)
    assert head.is_head()
    assert not place.is_head()
    head.leave()
    assert place.is_head()
    place.leave()


def test_a_failed_take_closes_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner goes on, and would leak a descriptor with each case that needs a GPU."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(leasing, "_lock_place", refuse)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match=os.strerror(errno.ENOLCK)):
        Place.take(file)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_file_that_another_program_has_locked_whole_is_an_error(file: Path) -> None:
    """The search for the end of the queue would never end."""
    with file.open("r+b") as other:
        leasing._lock_place(other.fileno(), fcntl.F_WRLCK, 0, 0)
        with pytest.raises(OSError, match="to its end"):
            Place.take(file)
