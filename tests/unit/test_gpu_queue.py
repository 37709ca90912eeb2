"""The queue in which processes wait for GPUs."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dist_testing.gpus.queue import Place

# One step of a history: somebody comes, or the one at this position (modulo the length) goes.
_STEPS = st.lists(st.one_of(st.just("come"), st.integers(min_value=0, max_value=7)), min_size=1, max_size=40)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """What everybody shares."""
    path = tmp_path / "nvidiactl"
    path.touch()
    return path


@given(steps=_STEPS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whoever_came_first_of_those_who_are_left_is_head(file: Path, steps: list[str | int]) -> None:
    """Somebody who asked for all GPUs would wait for ever behind those who want one."""
    with contextlib.ExitStack() as left_over:
        queue: list[Place] = []

        def leave_if_queued(place: Place) -> None:
            if place in queue:
                place.leave()

        for step in steps:
            if isinstance(step, str):
                place = Place.take(file)
                left_over.callback(leave_if_queued, place)
                queue.append(place)
            elif queue:
                queue.pop(step % len(queue)).leave()
            assert [place.is_head() for place in queue] == [True, *[False] * (len(queue) - 1)][: len(queue)]


def test_the_head_stays_head_when_others_come(file: Path) -> None:
    """Two heads would each take a part of the GPUs and wait for the other's."""
    first = Place.take(file)
    second = Place.take(file)
    first.leave()
    assert second.is_head()
    third = Place.take(file)
    assert second.is_head()
    assert not third.is_head()
    second.leave()
    assert third.wait_head(math.inf)
    third.leave()


def test_waiting_ends_when_the_one_before_leaves_and_not_earlier(file: Path) -> None:
    """A test that starts before its turn would find the GPUs taken."""
    first, second = Place.take(file), Place.take(file)
    assert not second.wait_head(time.monotonic())
    first.leave()
    assert second.wait_head(time.monotonic() + 60)
    second.leave()


def test_who_gives_up_while_waiting_is_not_waited_for(file: Path) -> None:
    """A case whose time is over would block everybody behind it."""
    first, second, third = (Place.take(file) for _ in range(3))
    assert not second.wait_head(time.monotonic())
    second.leave()
    first.leave()
    assert third.wait_head(time.monotonic() + 60)
    third.leave()


def test_who_dies_is_not_waited_for(file: Path) -> None:
    """A runner killed in the queue would block the machine until somebody cleans up."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        Place.take(file)
        os.write(write, b"1")
        # Killed by its parent. Reading from the pipe, it could take its own byte away.
        signal.pause()
        os._exit(1)
    assert os.read(read, 1)
    place = Place.take(file)
    assert not place.is_head()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert place.wait_head(time.monotonic() + 60)
    place.leave()
    os.close(read)
    os.close(write)


def test_a_file_that_another_program_has_locked_whole_is_an_error(file: Path) -> None:
    """Looking for the end of an endless queue would never end."""
    import fcntl

    with file.open("r+b") as other:
        fcntl.lockf(other, fcntl.LOCK_EX)
        pid = os.fork()
        if pid == 0:
            try:
                Place.take(file)
            except OSError as error:
                os._exit(0 if "to its end" in str(error) else 2)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
