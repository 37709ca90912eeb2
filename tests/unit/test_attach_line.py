"""The door for processes of other nodes: which connections rank 0's process takes, and what it does with them."""

from __future__ import annotations

import socket
import struct
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from dist_testing.attach.bridge import let_in
from dist_testing.attach.line import GREETINGS, OUTPOST, Answer, Challenge, Kind, Line, connect, interface_of, sign
from dist_testing.attach.messages import JOININGS, Joining, Lost, receive_joining
from dist_testing.core.ground.errors import LaunchError
from dist_testing.core.process import wire

# Far above what the door needs on a busy machine. Seconds.
_LIMIT_S = 60.0


@dataclass
class _Door:
    """The port of the door, and what stands for the runner behind it."""

    port: int
    runner: socket.socket

    def knock(self) -> socket.socket:
        """Connect as anyone can."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=_LIMIT_S)


@pytest.fixture(scope="module")
def door() -> Iterator[_Door]:
    """One door for all tests: nothing that a stranger does may change it for the next one."""
    with ExitStack() as stack:
        # Under Bazel, tmp_path is too long for a Unix socket.
        path = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")), "ranks")
        runner = stack.enter_context(socket.socket(socket.AF_UNIX))
        runner.settimeout(_LIMIT_S)
        runner.bind(str(path))
        runner.listen()
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        stack.callback(listener.shutdown, socket.SHUT_RDWR)
        let_in(listener, str(path), "token")
        yield _Door(listener.getsockname()[1], runner)


def _frame(payload: bytes, size: int | None = None, fds: int = 0) -> bytes:
    return struct.pack(">IH", len(payload) if size is None else size, fds) + payload


_PROOF = sign("token", OUTPOST, "a nonce of another greeting")


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        _frame(b"x", size=1 << 31),
        _frame(b"not JSON"),
        _frame(b"{}", fds=1),
        _frame(GREETINGS.to_wire(Answer("", "nonce", "node"))),
        _frame(GREETINGS.to_wire(Answer(_PROOF, "nonce", "node"))),
        _frame(GREETINGS.to_wire(Answer("\N{SNOWMAN}", "nonce", "node"))),
        _frame(GREETINGS.to_wire(Challenge("nonce", 0.0))),
        _frame(JOININGS.to_wire(Joining(1))),
    ],
    ids=["HTTP", "huge", "no JSON", "descriptor", "no proof", "replayed", "no ASCII", "role of rank 0", "no greeting"],
)
def test_who_has_no_token_is_sent_away(door: _Door, sent: bytes) -> None:
    """If this fails, any process of the network can report results and give orders, or ends the run by nonsense."""
    with door.knock() as stranger:
        assert wire.receive(stranger, GREETINGS) is not None
        stranger.sendall(sent)
        try:
            answer = stranger.recv(1)
        except ConnectionResetError:
            # The rest of what it has sent was not read.
            answer = b""
        assert answer == b""


def test_silent_strangers_do_not_keep_others_out(door: _Door) -> None:
    """If this fails, idle connections end every run of the machine."""
    with ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(door.knock())
        connection, _ = connect("127.0.0.1", door.port, "token")
        with connection:
            wire.send(connection, JOININGS, Joining(3))
            with door.runner.accept()[0] as runner:
                received = receive_joining(runner)
                assert received is not None
                received[1].close()
                assert received[0] == Joining(3, node=f"{socket.gethostname()} (127.0.0.1)")


def test_who_has_no_token_is_not_trusted(door: _Door) -> None:
    """If this fails, a program that has taken the port of a dead runner gives orders to ranks."""
    with pytest.raises(LaunchError, match="do not have the same token"):
        connect("127.0.0.1", door.port, "another")


@pytest.mark.parametrize("sent", [b"\xff\0\0\0\0", None], ids=["no frame", "gone"])
def test_the_runner_is_told_why_a_bridge_ends(door: _Door, sent: bytes | None) -> None:
    """If this fails, nonsense of another node ends the runner, or a rank is waited for until its limit."""
    connection, _ = connect("127.0.0.1", door.port, "token")
    with connection:
        wire.send(connection, JOININGS, Joining(3))
        with door.runner.accept()[0] as runner:
            received = receive_joining(runner)
            assert received is not None
            with received[1]:
                # Of no world, so they go nowhere.
                Line(connection).send(Kind.EVENT, b"")
                Line(connection).send(Kind.PHASES, b"x")
                Line(connection).send(Kind.LOG, b"x")
                if sent is None:
                    connection.close()
                else:
                    connection.sendall(sent)
                lost = wire.receive(runner, JOININGS)
                assert lost is not None
                assert isinstance(lost[0], Lost)
                expected = "has ended" if sent is None else "has failed: 255 is not a valid Kind"
                assert lost[0].reason.endswith(expected)


def test_an_address_without_a_listener_is_told() -> None:
    """If this fails, the ranks of a node wait, or end with a traceback."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(LaunchError, match=r"cannot reach rank 0's node at 127\.0\.0\.1:.*Connection refused"):
            connect("127.0.0.1", unused.getsockname()[1], "")


def test_the_interface_of_an_address() -> None:
    """gloo and NCCL choose the interface by its name."""
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") == ""
