"""Messages between the runner and its launchers, with descriptors beside them."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import struct
import time
import traceback
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from dist_testing.process.wire import MessageReader, WorldRequest, receive, send

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Both ends of a channel; a read that would wait for ever fails instead."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(5.0)
    with ours, theirs:
        yield ours, theirs


def request(**changes: Any) -> WorldRequest:
    """Return a request with a value in every field."""
    values: dict[str, Any] = {
        "world": 7,
        "size": 2,
        "body": {"door": "pytest", "nodeid": "a::b[\u00fc]"},
        "directory": "/tmp/x/7",
        "env": {"A": "1", "B": "\udcff"},
        "cwd": "/",
        "umask": 0o22,
        "threads": 1,
        "pool": False,
        "fresh": True,
        "together": False,
        "store_port": 29500,
        "settings": {"timeout_s": 1.5},
        "debug_rank": 1,
        "lease_fds": 2,
    }
    return WorldRequest(**{**values, **changes})


def test_a_request_arrives_as_it_was_sent(ends: Ends) -> None:
    """If this fails, a rank starts with a field missing or with a wrong value."""
    assert request().to_message()["do"] == "start"
    send(ends[0], request().to_message())
    received = receive(ends[1])
    assert received is not None
    message, fds = received
    assert fds == []
    assert WorldRequest.from_message(message) == request()
    assert len(fields(WorldRequest)) == len(message) - 1


@pytest.mark.parametrize("count", [0, 1, 2, 199, 200, 201, 253, 254, 401, 600])
def test_any_number_of_descriptors_arrives_in_order(ends: Ends, count: int) -> None:
    """If this fails, a world of 128 ranks mixes up descriptors: the kernel takes only 253 per message."""
    read_end, write_end = os.pipe()
    # Alternately two files, so that a change of order is visible.
    sent = [read_end, write_end] * (count // 2) + [read_end] * (count % 2)
    expected = [os.fstat(fd).st_ino for fd in sent] + [os.get_blocking(fd) for fd in sent]
    try:
        send(ends[0], {"do": "start", "n": count}, sent)
        received = receive(ends[1])
    finally:
        os.close(read_end)
        os.close(write_end)
    assert received is not None
    message, fds = received
    try:
        assert message == {"do": "start", "n": count}
        assert len(fds) == len(set(fds)) == count
        assert [os.fstat(fd).st_ino for fd in fds] + [os.get_blocking(fd) for fd in fds] == expected
        assert [is_writable(fd) for fd in fds] == [position % 2 == 1 for position in range(count)]
    finally:
        for fd in fds:
            os.close(fd)


def test_sending_waits_while_the_user_has_too_many_descriptors_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a case fails because other runners start ranks at the same moment."""
    pid = os.fork()
    if pid == 0:
        try:
            send_in_a_crowd(monkeypatch)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def send_in_a_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send a descriptor while more are in flight than this process may have open."""
    limit = 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    # A privileged user has no such limit. In a sandbox the user may have no privilege, and no other user to become.
    with contextlib.suppress(OSError):
        os.setuid(65534)
    ours, theirs = socket.socketpair()
    crowd, taker = socket.socketpair()
    with ours, theirs, crowd, taker:
        socket.send_fds(crowd, [b"\0"], [ours.fileno()] * (limit + 1))
        with pytest.raises(OSError, match=os.strerror(errno.ETOOMANYREFS)):
            socket.send_fds(ours, [b"\0"], [ours.fileno()])
        pauses = []

        def take(duration_s: float) -> None:
            pauses.append(duration_s)
            # The kernel closes the descriptors that do not fit into the table of open files; they are not in flight any
            # more.
            for fd in socket.recv_fds(taker, 1, limit + 1)[1]:
                os.close(fd)

        monkeypatch.setattr(time, "sleep", take)
        send(ours, {}, [ours.fileno()])
        assert pauses
        received = receive(theirs)
        assert received is not None
        assert len(received[1]) == 1


def test_sending_descriptors_does_not_wait_for_ever(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, descriptors that no process receives cause a hang instead of an error."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))

    monkeypatch.setattr(socket, "send_fds", refuse)
    monkeypatch.setattr("dist_testing.process.wire._CROWD_LIMIT_S", 0.0)
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it still waits"))
    with pytest.raises(OSError, match=os.strerror(errno.ETOOMANYREFS)):
        send(ends[0], {}, [ends[0].fileno()])


def is_writable(fd: int) -> bool:
    """Return whether a descriptor is the write end of a pipe."""
    try:
        os.write(fd, b"")
    except OSError:
        return False
    return True


def test_descriptors_stay_with_their_message(ends: Ends) -> None:
    """If this fails, a rank gets the channel of another rank."""
    read_end, write_end = os.pipe()
    try:
        send(ends[0], {"n": 1})
        send(ends[0], {"n": 2}, [write_end])
        send(ends[0], {"n": 3})
        send(ends[0], {"n": 4}, [read_end, write_end])
        got = [receive(ends[1]) for _ in range(4)]
    finally:
        os.close(read_end)
        os.close(write_end)
    messages = [received for received in got if received is not None]
    for _, fds in messages:
        for fd in fds:
            os.close(fd)
    assert [(message["n"], len(fds)) for message, fds in messages] == [(1, 0), (2, 1), (3, 0), (4, 2)]


def test_a_received_descriptor_is_not_inherited_by_programs(ends: Ends) -> None:
    """If this fails, a daemon that a test starts with `os.system` keeps the store's port and the pipe for stacks."""
    send(ends[0], {}, [ends[0].fileno()])
    received = receive(ends[1])
    assert received is not None
    (fd,) = received[1]
    try:
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("count", [30, 200, 430])
def test_descriptors_without_room_do_not_affect_other_messages(ends: Ends, count: int) -> None:
    """If this fails, the reader waits for descriptors that the kernel has closed, or misreads the next message."""
    send(ends[0], {"n": 1}, [ends[0].fileno()] * count)
    send(ends[0], {"n": 2})
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = set(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (20, limits[1]))
    try:
        received = [receive(ends[1]) for _ in range(2)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert received == [({"n": 1}, []), ({"n": 2}, [])]
    assert set(os.listdir("/proc/self/fd")) == before


def test_the_end_of_the_stream_gives_no_message(ends: Ends) -> None:
    """If this fails, the fork server does not learn that the runner is gone."""
    ends[0].close()
    assert receive(ends[1]) is None


@pytest.mark.parametrize(
    "data",
    [b"\0", b"\0\0\0\x08{", struct.pack(">I", 10) + b'{"fds": 1}', struct.pack(">I", 10) + b'{"fds": 2}\0'],
    ids=["length", "payload", "no descriptor", "no descriptor with its byte"],
)
def test_an_incomplete_message_is_ignored(ends: Ends, data: bytes) -> None:
    """If this fails, half a request, from a runner that was killed while it wrote, starts ranks."""
    ends[0].sendall(data)
    ends[0].close()
    assert receive(ends[1]) is None


def test_a_reset_is_the_end_of_the_stream(ends: Ends) -> None:
    """If this fails, a socket that Linux resets because of unread data causes an error."""
    ends[1].sendall(b"unread")
    ends[0].close()
    assert receive(ends[1]) is None


@pytest.mark.parametrize("step", [1, 3, 5, 1000])
def test_the_reader_finds_messages_at_any_cut(ends: Ends, step: int) -> None:
    """If this fails, the runner, which reads only the available bytes, loses a message."""
    sent: list[dict[str, Any]] = [
        {"event": "ended", "rank": 3, "exit_code": -9},
        {"event": "over", "leaked": ["sleep \u00fc"]},
        {},
    ]
    for message in sent:
        send(ends[0], message)
    data = ends[1].recv(1 << 16)
    reader = MessageReader()
    received = [message for first in range(0, len(data), step) for message in reader.feed(data[first : first + step])]
    assert received == sent


class TricklingSocket(socket.socket):
    """A socket that returns three bytes at a time."""

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """Receive at most three bytes."""
        return super().recv(min(3, bufsize), flags)


def test_no_byte_of_the_next_message_is_taken(ends: Ends) -> None:
    """If this fails, a read of one message takes bytes of the next."""
    sent = [{"event": "first"}, {"event": "second"}]
    for message in sent:
        send(ends[0], message)
    with TricklingSocket(fileno=ends[1].detach()) as trickling:
        trickling.settimeout(5.0)
        assert [receive(trickling) for _ in sent] == [(message, []) for message in sent]


def test_sending_does_not_change_the_message(ends: Ends) -> None:
    """If this fails, callers cannot use a message again."""
    message = {"do": "signal"}
    send(ends[0], message)
    assert message == {"do": "signal"}
