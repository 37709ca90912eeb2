"""The queue in which processes wait for GPUs."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dist_testing.gpus import queue as gpu_queue
from dist_testing.gpus.queue import Place
from tests.support.forks import forked

# One step of a history: a process comes for some of three things, or the one at this position (modulo the length) goes.
_STEPS = st.lists(
    st.one_of(st.frozensets(st.integers(0, 2), min_size=1), st.integers(min_value=0, max_value=7)),
    min_size=1,
    max_size=40,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The file that all processes share."""
    path = tmp_path / "nvidiactl"
    path.touch()
    return path


@given(steps=_STEPS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_the_first_place_that_is_not_left_is_head(file: Path, steps: list[frozenset[int] | int]) -> None:
    """A process that asked for all GPUs would wait for ever behind processes that ask for one."""
    with contextlib.ExitStack() as left_over:
        queue: list[tuple[Place, frozenset[int]]] = []

        def leave_if_queued(entry: tuple[Place, frozenset[int]]) -> None:
            if entry in queue:
                entry[0].leave()

        for step in steps:
            if isinstance(step, frozenset):
                entry = (Place.take(file, step), step)
                left_over.callback(leave_if_queued, entry)
                queue.append(entry)
            elif queue:
                queue.pop(step % len(queue))[0].leave()
            for lane in range(3):
                waiting = [place for place, lanes in queue if lane in lanes]
                assert [place.is_head(lane) for place in waiting] == [True, *[False] * (len(waiting) - 1)][
                    : len(waiting)
                ]


def test_the_head_stays_head_when_others_come(file: Path) -> None:
    """Two heads would each take a part of the GPUs and wait for the other's."""
    first = Place.take(file, [0])
    second = Place.take(file, [0])
    first.leave()
    assert second.is_head(0)
    third = Place.take(file, [0])
    assert second.is_head(0)
    assert not third.is_head(0)
    second.leave()
    assert third.is_head(0)
    third.leave()


def test_places_with_a_lane_in_common_are_in_one_order_in_all_of_them(file: Path) -> None:
    """Two processes that are each first for one GPU, and wait for the other's GPU, wait for ever."""
    alone = [Place.take(file, [1]) for _ in range(3)]
    one = Place.take(file, [0, 1])
    other = Place.take(file, [1, 0])
    assert (one.is_head(0), one.is_head(1)) == (True, False)
    assert not other.is_head(0)
    for place in alone:
        place.leave()
    assert one.is_head(1)
    assert not other.is_head(1)
    one.leave()
    assert other.is_head(0)
    assert other.is_head(1)
    other.leave()


def test_processes_that_come_at_once_get_different_places(file: Path) -> None:
    """Two processes on one place would both be head."""
    go_read, go_write = os.pipe()
    heads_read, heads_write = os.pipe()
    pids = []
    for number in range(16):
        pid = os.fork()
        if pid == 0:
            os.close(go_write)
            os.read(go_read, 1)
            lanes = [0, 1 + number % 2]
            place = Place.take(file, lanes)
            while not all(place.is_head(lane) for lane in lanes):
                time.sleep(0.001)
            os.write(heads_write, b"%d " % number)
            os.write(heads_write, b"%d " % number)
            place.leave()
            os._exit(0)
        pids.append(pid)
    os.close(go_write)
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0
    os.close(heads_write)
    with os.fdopen(heads_read) as heads:
        words = heads.read().split()
    assert len(words) == 2 * len(pids)
    assert words[::2] == words[1::2]
    os.close(go_read)
    last = Place.take(file, range(3))
    assert all(last.is_head(lane) for lane in range(3))
    last.leave()


def test_a_place_that_is_given_up_blocks_no_other(file: Path) -> None:
    """A case whose time is over would block all cases behind it."""
    first, second, third = (Place.take(file, [0]) for _ in range(3))
    second.leave()
    first.leave()
    assert third.is_head(0)
    third.leave()


def test_a_child_that_was_forked_in_the_queue_does_not_stay_in_it(file: Path) -> None:
    """A helper that a test forks while its runner waits would block every GPU of the machine until it ends."""
    place = Place.take(file, [0])
    with forked():
        place.leave()
        other = Place.take(file, [0])
        assert other.is_head(0)
        other.leave()


def test_a_killed_process_blocks_no_other(file: Path) -> None:
    """A runner killed in the queue would block the machine until an administrator cleans up."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        Place.take(file, [0])
        os.write(write, b"1")
        # Until its parent kills it. If it read from the pipe instead, it could take its own byte.
        signal.pause()
        os._exit(1)
    assert os.read(read, 1)
    place = Place.take(file, [0])
    assert not place.is_head(0)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert place.is_head(0)
    place.leave()
    os.close(read)
    os.close(write)


def test_a_process_that_comes_at_the_same_moment_starts_again_in_all_lanes(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an early place in one lane and a late one in another, two processes would wait for each other."""
    others: list[Place] = []
    looks: list[int] = []
    first_free = gpu_queue._first_free

    def look(fd: int, lane: int, number: int) -> int:
        looks.append(fd)
        # The other processes look, too.
        own_looks = looks.count(looks[0]) if fd == looks[0] else 0
        if own_looks == 3:
            # Between the two attempts.
            others.append(Place.take(file, [0]))
        found = first_free(fd, lane, number)
        if own_looks == 2:
            # Between the look and the lock.
            others.append(Place.take(file, [1]))
        return found

    monkeypatch.setattr(gpu_queue, "_first_free", look)
    place = Place.take(file, [0, 1])
    in_lane_1, in_lane_0 = others
    assert in_lane_0.is_head(0)
    assert in_lane_1.is_head(1)
    assert not place.is_head(0)
    in_lane_0.leave()
    in_lane_1.leave()
    assert place.is_head(0)
    assert place.is_head(1)
    place.leave()


def test_a_failed_take_closes_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner goes on, and would leak a descriptor with each case that needs a GPU."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(gpu_queue, "_lock", refuse)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match=os.strerror(errno.ENOLCK)):
        Place.take(file, [0])
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_file_that_another_program_has_locked_whole_is_an_error(file: Path) -> None:
    """The search for the end of the queue would never end."""
    import fcntl

    with file.open("r+b") as other:
        fcntl.lockf(other, fcntl.LOCK_EX)
        pid = os.fork()
        if pid == 0:
            try:
                Place.take(file, [0])
            except OSError as error:
                os._exit(0 if "to its end" in str(error) else 2)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
