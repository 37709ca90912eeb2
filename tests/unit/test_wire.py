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
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_testing.core.ground.codec import Family
from dist_testing.core.ground.errors import MessageError
from dist_testing.core.process.rank_messages import Ready
from dist_testing.core.process.wire import MessageReader, receive, send
from dist_testing.core.rank.reporter import send_message

SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=50)
Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Both ends of a channel; a read that would wait for ever fails instead."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(5.0)
    with ours, theirs:
        yield ours, theirs


@dataclass(frozen=True)
class Note:
    """A message, for these tests."""

    number: int
    text: str = ""


NOTES: Family[Note] = Family("note", 1, (Note,))


def framed(payload: bytes, fds: int = 0) -> bytes:
    """A payload with its header before it."""
    return struct.pack(">IH", len(payload), fds) + payload


@pytest.mark.parametrize("count", [0, 1, 2, 199, 200, 201, 253, 254, 401, 600])
def test_any_number_of_descriptors_arrives_in_order(ends: Ends, count: int) -> None:
    """If this fails, a world of 128 ranks mixes up descriptors: the kernel takes only 253 per message."""
    read_end, write_end = os.pipe()
    # Alternately two files, so that a change of order is visible.
    sent = [read_end, write_end] * (count // 2) + [read_end] * (count % 2)
    expected = [os.fstat(fd).st_ino for fd in sent] + [os.get_blocking(fd) for fd in sent]
    try:
        send(ends[0], NOTES, Note(count, "x" * 100_000), sent)
        send(ends[0], NOTES, Note(-1))
        received = receive(ends[1], NOTES)
        assert receive(ends[1], NOTES) == (Note(-1), []), "descriptors stay with their message"
    finally:
        os.close(read_end)
        os.close(write_end)
    assert received is not None
    message, fds = received
    try:
        assert message == Note(count, "x" * 100_000)
        assert len(fds) == len(set(fds)) == count
        assert [os.fstat(fd).st_ino for fd in fds] + [os.get_blocking(fd) for fd in fds] == expected
        assert [is_writable(fd) for fd in fds] == [position % 2 == 1 for position in range(count)]
        # A daemon that a test starts with `os.system` must not keep the store's port.
        assert not any(map(os.get_inheritable, fds))
    finally:
        for fd in fds:
            os.close(fd)


def test_sending_waits_while_the_user_has_too_many_descriptors_in_flight(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, a case fails because other runners start ranks at the same moment, or waits for ever."""
    pid = os.fork()
    if pid == 0:
        try:
            send_in_a_crowd(monkeypatch)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    def refuse(*_: object) -> None:
        raise OSError(errno.ETOOMANYREFS, os.strerror(errno.ETOOMANYREFS))

    monkeypatch.setattr(socket, "send_fds", refuse)
    monkeypatch.setattr("dist_testing.core.process.wire._CROWD_LIMIT_S", 0.0)
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it still waits"))
    with pytest.raises(OSError, match=os.strerror(errno.ETOOMANYREFS)):
        send(ends[0], NOTES, Note(0), [ends[0].fileno()])


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
        send(ours, NOTES, Note(0), [ours.fileno()])
        assert pauses
        received = receive(theirs, NOTES)
        assert received is not None
        assert len(received[1]) == 1


def is_writable(fd: int) -> bool:
    """Return whether a descriptor is the write end of a pipe."""
    try:
        os.write(fd, b"")
    except OSError:
        return False
    return True


@pytest.mark.parametrize("count", [30, 200, 430])
def test_descriptors_without_room_do_not_affect_other_messages(ends: Ends, count: int) -> None:
    """If this fails, the reader waits for descriptors that the kernel has closed, or misreads the next message."""
    send(ends[0], NOTES, Note(1), [ends[0].fileno()] * count)
    send(ends[0], NOTES, Note(2))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = set(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (20, limits[1]))
    try:
        received = [receive(ends[1], NOTES) for _ in range(2)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert received == [(Note(1), []), (Note(2), [])]
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("fds", [0, 1, 300])
@pytest.mark.parametrize("whole", [False, True], ids=["any part", "all but the descriptors"])
def test_a_stream_that_ends_inside_a_message_is_none(fds: int, whole: bool) -> None:
    """The runner was killed while it wrote; half a request must not start ranks."""
    data = framed(NOTES.to_wire(Note(1)), fds)
    for length in range(len(data) + (1 if fds else 0)):
        if whole is (length == len(data)):
            ours, theirs = socket.socketpair()
            with ours, theirs:
                theirs.settimeout(5.0)
                ours.sendall(data[:length])
                ours.close()
                assert receive(theirs, NOTES) is None


@pytest.mark.parametrize(
    "data",
    [
        b"Hello, world, this is a print",
        framed(b"{]"),
        struct.pack(">IH", NOTES.max_bytes + 1, 0),
        b"\xff" * 6,
    ],
    ids=["text", "not JSON", "too long", "longest"],
)
def test_what_is_no_message_is_refused_by_both_readers(ends: Ends, data: bytes) -> None:
    """If this fails, what a test writes to a descriptor of ours starts ranks. test_messages.py has wrong messages."""
    ends[0].sendall(data)
    with pytest.raises(MessageError, match=r"^note: ") as blocking:
        receive(ends[1], NOTES)
    with pytest.raises(MessageError, match=r"^note: ") as fed:
        list(MessageReader(NOTES).feed(data))
    assert str(blocking.value) == str(fed.value)


@SETTINGS
@given(
    st.lists(st.builds(Note, st.integers(-(1 << 63), (1 << 63) - 1), st.text(max_size=10)), max_size=4),
    st.lists(st.integers(1, 200), max_size=20),
    st.binary(max_size=200),
)
def test_the_reader_finds_messages_at_any_cuts(notes: list[Note], cuts: list[int], garbage: bytes) -> None:
    """The kernel hands out what it has, not what was sent in one go; and the runner never waits for the rest."""
    data = b"".join(framed(NOTES.to_wire(note)) for note in notes)
    reader = MessageReader(NOTES)
    received: list[Note] = []
    for size in [*cuts, len(data)]:
        received += reader.feed(data[:size])
        data = data[size:]
    assert received == notes
    assert not reader.is_inside
    # Any other exception would be a traceback of ours.
    with contextlib.suppress(MessageError):
        assert list(reader.feed(garbage)) == []


def test_a_torn_message_is_seen_at_every_cut() -> None:
    """A rank that dies while it reports must not count as one that said nothing, or all."""
    data = framed(NOTES.to_wire(Note(1)))
    for kept in range(1, len(data)):
        reader = MessageReader(NOTES)
        assert list(reader.feed(data + data[:kept])) == [Note(1)]
        assert reader.is_inside
    assert not MessageReader(NOTES).is_inside


def test_descriptors_are_sent_and_read_where_they_are_expected(ends: Ends) -> None:
    """If this fails, a reader waits for descriptors that were never sent, or leaves them before the next message."""
    ends[0].sendall(framed(NOTES.to_wire(Note(1)), 2) + b"\0")
    with pytest.raises(MessageError, match=r"^note: a message without its 2 descriptors\."):
        receive(ends[1], NOTES)
    with pytest.raises(MessageError, match=r"^note: a message with 3 descriptors; expected none"):
        list(MessageReader(NOTES).feed(framed(NOTES.to_wire(Note(1)), 3)))


class TricklingSocket(socket.socket):
    """A socket that returns three bytes at a time."""

    def recv(self, bufsize: int, flags: int = 0) -> bytes:
        """Receive at most three bytes."""
        return super().recv(min(3, bufsize), flags)


def test_no_byte_of_the_next_message_is_taken(ends: Ends) -> None:
    """If this fails, a read of one message takes bytes of the next."""
    sent = [Note(1, "first"), Note(2, "second")]
    for message in sent:
        send(ends[0], NOTES, message)
    with TricklingSocket(fileno=ends[1].detach()) as trickling:
        trickling.settimeout(5.0)
        assert [receive(trickling, NOTES) for _ in sent] == [(message, []) for message in sent]


def test_a_message_that_is_refused_leaves_nothing_on_the_way(ends: Ends) -> None:
    """The next one would not be understood."""
    small: Family[Note] = Family("note", 1, (Note,), max_bytes=100)
    with pytest.raises(MessageError, match="the limit is 100"):
        send(ends[0], small, Note(1, "x" * 100), [ends[0].fileno()])
    send(ends[0], small, Note(2))
    assert receive(ends[1], small) == (Note(2), [])


@pytest.mark.parametrize("unread", [b"", b"unread"], ids=["end", "reset"])
def test_the_end_of_the_stream_gives_no_message(ends: Ends, unread: bytes) -> None:
    """If this fails, the fork server does not learn that the runner is gone, or Linux's reset is an error."""
    ends[1].sendall(unread)
    ends[0].close()
    assert receive(ends[1], NOTES) is None


def test_a_rank_tells_only_a_runner_that_is_there() -> None:
    """If this fails, a rank whose runner is gone raises in a good test, or one that closed its channel goes on."""
    ours, theirs = socket.socketpair()
    theirs.close()
    send_message(ours, Ready())
    ours.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        send_message(ours, Ready())
