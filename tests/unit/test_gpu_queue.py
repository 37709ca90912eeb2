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
from dist_testing.gpus.queue import RankInfo
from tests.support.forks import forked

# One step of a history: somebody comes for some of three things, or the one at this position (modulo the length) goes.
_STEPS = st.lists(
    st.one_of(st.frozensets(st.integers(0, 2), min_size=1), st.integers(min_value=0, max_value=7)),
    min_size=1,
    max_size=40,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """What everybody shares."""
    path = tmp_path / "nvidiactl"
    path.touch()
    return path


@given(steps=_STEPS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whoever_came_first_of_those_who_are_left_is_head(file: Path, steps: list[frozenset[int] | int]) -> None:
    """Somebody who asked for all GPUs would wait for ever behind those who want one, or for GPUs of others."""
    with contextlib.ExitStack() as left_over:
        queue: list[tuple[RankInfo, frozenset[int]]] = []

        def leave_if_queued(entry: tuple[RankInfo, frozenset[int]]) -> None:
            if entry in queue:
                entry[0].leave()

        for step in steps:
            if isinstance(step, frozenset):
                entry = (RankInfo.take(file, step), step)
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
    first = RankInfo.take(file, [0])
    second = RankInfo.take(file, [0])
    first.leave()
    assert second.is_head(0)
    third = RankInfo.take(file, [0])
    assert second.is_head(0)
    assert not third.is_head(0)
    second.leave()
    assert third.is_head(0)
    third.leave()


def test_places_with_a_lane_in_common_are_in_one_order_in_all_of_them(file: Path) -> None:
    """Two who each are first for one GPU, and wait for the other's, wait for ever."""
    alone = [RankInfo.take(file, [1]) for _ in range(3)]
    one = RankInfo.take(file, [0, 1])
    other = RankInfo.take(file, [1, 0])
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


def test_many_who_come_at_once_get_places_of_their_own(file: Path) -> None:
    """Two on one place would both be head."""
    go_read, go_write = os.pipe()
    heads_read, heads_write = os.pipe()
    pids = []
    for number in range(16):
        pid = os.fork()
        if pid == 0:
            os.close(go_write)
            os.read(go_read, 1)
            lanes = [0, 1 + number % 2]
            place = RankInfo.take(file, lanes)
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
    last = RankInfo.take(file, range(3))
    assert all(last.is_head(lane) for lane in range(3))
    last.leave()


def test_who_gives_up_while_waiting_is_not_waited_for(file: Path) -> None:
    """A case whose time is over would block everybody behind it."""
    first, second, third = (RankInfo.take(file, [0]) for _ in range(3))
    second.leave()
    first.leave()
    assert third.is_head(0)
    third.leave()


def test_a_child_that_was_forked_in_the_queue_does_not_stay_in_it(file: Path) -> None:
    """A helper that a test forks while its runner waits would block every GPU of the machine until it ends."""
    place = RankInfo.take(file, [0])
    with forked():
        place.leave()
        other = RankInfo.take(file, [0])
        assert other.is_head(0)
        other.leave()


def test_who_dies_is_not_waited_for(file: Path) -> None:
    """A runner killed in the queue would block the machine until somebody cleans up."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        RankInfo.take(file, [0])
        os.write(write, b"1")
        # Killed by its parent. Reading from the pipe, it could take its own byte away.
        signal.pause()
        os._exit(1)
    assert os.read(read, 1)
    place = RankInfo.take(file, [0])
    assert not place.is_head(0)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert place.is_head(0)
    place.leave()
    os.close(read)
    os.close(write)


def test_who_comes_at_the_same_moment_as_another_gives_up_what_it_had(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it keeps an early place in one lane and gets a late one in the other, and two wait for each other."""
    others: list[RankInfo] = []
    looks: list[int] = []
    first_free = gpu_queue._first_free

    def look(fd: int, lane: int, number: int) -> int:
        looks.append(fd)
        # Those who come look, too.
        own_looks = looks.count(looks[0]) if fd == looks[0] else 0
        if own_looks == 3:
            # Between the two attempts.
            others.append(RankInfo.take(file, [0]))
        found = first_free(fd, lane, number)
        if own_looks == 2:
            # Between the look and the lock.
            others.append(RankInfo.take(file, [1]))
        return found

    monkeypatch.setattr(gpu_queue, "_first_free", look)
    place = RankInfo.take(file, [0, 1])
    in_lane_1, in_lane_0 = others
    assert in_lane_0.is_head(0)
    assert in_lane_1.is_head(1)
    assert not place.is_head(0)
    in_lane_0.leave()
    in_lane_1.leave()
    assert place.is_head(0)
    assert place.is_head(1)
    place.leave()


def test_a_queue_that_cannot_be_joined_is_let_go_of(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runner goes on, and would keep a descriptor for each case that needs a GPU."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(gpu_queue, "_lock", refuse)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match=os.strerror(errno.ENOLCK)):
        RankInfo.take(file, [0])
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_file_that_another_program_has_locked_whole_is_an_error(file: Path) -> None:
    """Looking for the end of an endless queue would never end."""
    import fcntl

    with file.open("r+b") as other:
        fcntl.lockf(other, fcntl.LOCK_EX)
        pid = os.fork()
        if pid == 0:
            try:
                RankInfo.take(file, [0])
            except OSError as error:
                os._exit(0 if "to its end" in str(error) else 2)
            os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
