"""The hub beside rank 0: which connections it takes for relays, and what it does with what they send."""

from __future__ import annotations

import socket
import struct
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from dist_testing.attach.helper import start_hub
from dist_testing.attach.line import interface_of
from dist_testing.attach.relay import _connect
from dist_testing.attach.relay_messages import (
    GREETINGS,
    LINES,
    RELAY,
    Answer,
    Challenge,
    HubTask,
    RankHere,
    RankRefused,
    RelayTask,
    sign,
)
from dist_testing.core.ground.errors import LaunchError
from dist_testing.core.process import wire
from dist_testing.core.process.messages import ATTACHED_MESSAGES, Hello

# Far above what a hub needs on a busy machine. Seconds.
_LIMIT_S = 60.0


@dataclass
class _Hub:
    """A hub, and what stands for rank 0."""

    port: int
    rank_0: socket.socket

    def connect(self) -> socket.socket:
        """Connect as anyone can."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=_LIMIT_S)


@pytest.fixture(scope="module")
def hub() -> Iterator[_Hub]:
    """One hub for all tests: nothing that a stranger does may change it for the next one."""
    with ExitStack() as stack:
        # Under Bazel, tmp_path is too long for a Unix socket.
        path = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")), "ranks")
        rank_0 = stack.enter_context(socket.socket(socket.AF_UNIX))
        rank_0.settimeout(_LIMIT_S)
        rank_0.bind(str(path))
        rank_0.listen()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            process = start_hub(HubTask(listener.fileno(), str(path), "token"))
        assert process.stdin is not None
        assert process.stdout is not None
        stack.callback(process.stdout.close)
        stack.callback(process.stdout.read)
        stack.callback(process.stdin.close)
        yield _Hub(port, rank_0)


def _frame(payload: bytes, size: int | None = None, fds: int = 0) -> bytes:
    return struct.pack(">IH", len(payload) if size is None else size, fds) + payload


_PROOF = sign("token", RELAY, "a nonce of another greeting")


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
        _frame(LINES.to_wire(RankHere(1))),
    ],
    ids=["HTTP", "huge", "no JSON", "descriptor", "no proof", "replayed", "no ASCII", "role of the hub", "no greeting"],
)
def test_who_has_no_token_is_sent_away(hub: _Hub, sent: bytes) -> None:
    """If this fails, any process of the network can report results and give orders, or ends the run by nonsense."""
    with hub.connect() as stranger:
        assert wire.receive(stranger, GREETINGS) is not None
        stranger.sendall(sent)
        assert stranger.recv(1) == b""


def test_silent_strangers_do_not_keep_relays_out(hub: _Hub) -> None:
    """If this fails, as many idle connections as the hub has room for end every run of the machine."""
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(hub.connect())
        connection, _ = _connect(RelayTask("127.0.0.1", hub.port, "token"))
        with connection:
            wire.send(connection, LINES, RankHere(3))
            rank, _ = hub.rank_0.accept()
            with rank:
                received = wire.receive(rank, ATTACHED_MESSAGES)
                assert received is not None
                hello = received[0]
                assert isinstance(hello, Hello)
                assert (hello.rank, hello.node) == (3, f"{socket.gethostname()} (127.0.0.1)")


def test_a_relay_does_not_trust_who_has_no_token(hub: _Hub) -> None:
    """If this fails, a program that has taken the port of a dead hub gives orders to ranks."""
    with pytest.raises(LaunchError, match="do not have the same token"):
        _connect(RelayTask("127.0.0.1", hub.port, "another"))


def test_a_relay_that_sends_orders_loses_its_connection(hub: _Hub) -> None:
    """If this fails, messages of the other direction end the hub, and with it the run."""
    connection, _ = _connect(RelayTask("127.0.0.1", hub.port, "token"))
    with connection:
        connection.setblocking(True)
        wire.send(connection, LINES, RankRefused(1, "no"))
        assert connection.recv(1) == b""


def test_an_address_without_a_listener_is_told() -> None:
    """If this fails, the ranks of a node wait, or end with a traceback."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(LaunchError, match=r"cannot reach rank 0's node at 127\.0\.0\.1:.*Connection refused"):
            _connect(RelayTask("127.0.0.1", unused.getsockname()[1], ""))


def test_the_interface_of_an_address() -> None:
    """gloo and NCCL choose the interface by its name."""
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.1") == ""
