"""Who may take part in an attached world: the socket of rank 0's process, and its door for other nodes."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dist_testing.attach import launcher as module
from dist_testing.attach import rank_info
from dist_testing.attach.attach_messages import MESSAGES, OUTPOST, EndRun, Home, Joining, Kind, Line, connect, sign
from dist_testing.attach.bridge import Door, FarEnd
from dist_testing.attach.launcher import AttachedLauncher
from dist_testing.attach.rank_info import RankInfo, interface_env
from dist_testing.core.ground.backends import backend_named
from dist_testing.core.ground.case import CaseBody
from dist_testing.core.ground.codec import MAX_MESSAGE_BYTES
from dist_testing.core.ground.errors import LaunchError
from dist_testing.core.ground.world import WorldSettings
from dist_testing.core.process import wire
from dist_testing.core.process.board import PhaseBoard
from dist_testing.core.process.launcher_messages import FORK_SERVER_ORDERS, WorldRequest

# Far above what these tests need on a busy machine. Seconds.
_LIMIT_S = 60.0
_Visit = Callable[[socket.socket], None]


def _joins(rank: int, difference: str = "") -> _Visit:
    def join(connection: socket.socket) -> None:
        one, other = socket.socketpair()
        with one, other:
            wire.send(connection, MESSAGES, Joining(rank, difference), [one.fileno()])

    return join


def _sends(payload: bytes, size: int | None = None, fds: int = 0) -> _Visit:
    frame = struct.pack(">IH", len(payload) if size is None else size, fds) + payload
    return lambda connection: connection.sendall(frame)


def _leaves(connection: socket.socket) -> None:
    _joins(1)(connection)
    connection.close()


_Admit = Callable[..., tuple[AttachedLauncher, list[str]]]


@pytest.fixture
def admit(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Admit]:
    """Create rank 0's launcher, with what it tells; these clients connect in this order before it accepts the first."""
    with contextlib.ExitStack() as stack:

        def admit(*visits: _Visit, size: int = 2) -> tuple[AttachedLauncher, list[str]]:
            # The path of a socket has at most 107 bytes.
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))

            def connect_all(_: str, home: str) -> None:
                found = MESSAGES.from_wire(home.encode())
                assert isinstance(found, Home)
                for visit in visits:
                    connection = stack.enter_context(socket.socket(socket.AF_UNIX))
                    connection.connect(found.path)
                    visit(connection)

            monkeypatch.setattr(RankInfo, "store", lambda self: SimpleNamespace(set=connect_all))
            info = RankInfo(0, size, "127.0.0.1", 1, is_served=True, attempt="")
            run: Any = SimpleNamespace(temp=folder)
            told: list[str] = []
            launcher = AttachedLauncher(info, run, "127.0.0.1", ["test_a"], told.append)
            stack.callback(launcher.close)
            return launcher, told

        monkeypatch.setattr(module, "_JOINING_LIMIT_S", 0.2)
        # No tests are forked here.
        end, other = map(stack.enter_context, socket.socketpair())
        server = SimpleNamespace(fileno=end.fileno, close=other.close, unclean_reasons=())
        monkeypatch.setattr(module, "ForkServerLauncher", lambda run: server)
        yield admit


@pytest.mark.parametrize(
    "visit",
    [
        _sends(b"", size=5),
        _sends(b"no JSON"),
        _sends(MESSAGES.to_wire(EndRun(0))),
        _sends(MESSAGES.to_wire(Joining(1)), fds=1),
        _sends(MESSAGES.to_wire(Joining(1))),
        _sends(b"", size=0xFFFFFFFF),
        *map(_joins, (0, 2)),
        _leaves,
    ],
)
def test_invalid_clients_do_not_keep_the_ranks_out(admit: _Admit, visit: _Visit) -> None:
    """If this fails, a rank that was killed while it connected ends the run of all others, or delays it long."""
    launcher, _ = admit(visit, _joins(1))
    assert launcher.gone == {}
    assert set(launcher._peers) == {1}


def test_a_rank_that_cannot_take_part_is_named(admit: _Admit, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, the user does not learn which rank to look at: with other tests, or not there at all."""
    _, (told,) = admit(_joins(1, Home("", "", ("a", "b")).difference(1, {"a", "c"})))
    assert told.endswith("of rank 0: rank 0 has b, and rank 1 does not (1 more differ)"), told
    monkeypatch.setattr(module, "ATTACH_LIMIT_S", 0.01)
    with pytest.raises(LaunchError, match=r"Rank\(s\) 1, 2 of 3 did not connect"):
        admit(size=3)


def test_no_wait_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a user who has set RANK for another reason sees nothing for five minutes."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(rank_info, "NEXT_LINE_S", 0.01)
    info = RankInfo(0, 2, "127.0.0.1", 29511, is_served=True, attempt="")
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    with info.saying_who_is_missing(lambda: [1], lines.put, first_s=0.01):
        said = [lines.get(timeout=_LIMIT_S) for _ in range(2)]
    line = "waiting for rank 1 of 2 at 127.0.0.1:29511 (RANK=0 is set; not under torchrun? unset RANK)"
    assert said == [line, line]


@pytest.fixture(scope="module")
def door() -> Iterator[tuple[Door, socket.socket]]:
    """One door for all tests, and the runner behind it: nothing that a stranger does may change it for the next one."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as runner:
        runner.settimeout(_LIMIT_S)
        runner.bind(str(Path(folder, "ranks")))
        runner.listen()
        door = Door("127.0.0.1", str(Path(folder, "ranks")), "token")
        yield door, runner
        door.close()


_NUMBER = bytes(32)


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\n\r\n", bytes(64), _NUMBER + sign("token", OUTPOST, b"of another greeting"), b""],
    ids=["HTTP", "no proof", "replayed", "nothing"],
)
def test_who_has_no_token_is_sent_away(door: tuple[Door, socket.socket], sent: bytes) -> None:
    """If this fails, any process of the network can report results and give orders, or ends the run by nonsense."""
    with socket.create_connection(("127.0.0.1", door[0].port), timeout=_LIMIT_S) as stranger:
        assert len(stranger.recv(32)) == 32
        stranger.sendall(sent)
        stranger.shutdown(socket.SHUT_WR)
        assert stranger.recv(1) == b""


def test_who_has_no_token_is_not_trusted(door: tuple[Door, socket.socket]) -> None:
    """If this fails, a program that has taken the port of a dead runner gives orders to ranks."""
    with pytest.raises(LaunchError, match="do not have the same token"):
        connect("127.0.0.1", door[0].port, "another")


@contextlib.contextmanager
def _joined(door: tuple[Door, socket.socket]) -> Iterator[tuple[socket.socket, socket.socket, socket.socket]]:
    """Yield the ends of a bridge: the connection of another node, the runner's, and that of the fork server."""
    connection, _ = connect("127.0.0.1", door[0].port, "token")
    wire.send(connection, MESSAGES, Joining(3, node="node"))
    with connection, door[1].accept()[0] as runner:
        runner.settimeout(_LIMIT_S)
        joining, fds = wire.receive(runner, MESSAGES) or (None, [])
        assert joining == Joining(3, node="node (127.0.0.1)")
        with socket.socket(fileno=fds[0]) as control:
            control.settimeout(_LIMIT_S)
            yield connection, runner, control


def test_silent_strangers_do_not_keep_others_out(door: tuple[Door, socket.socket]) -> None:
    """If this fails, idle connections end every run of the machine."""
    with contextlib.ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(socket.create_connection(("127.0.0.1", door[0].port)))
        stack.enter_context(_joined(door))


_NO_ORDER = "order to the fork server"
_NONSENSE = [
    pytest.param(struct.pack("!i", 1) + b"\xff", "255 is not a valid Kind", id="no kind"),
    pytest.param(struct.pack("!i", 0), "0 is not a valid Kind", id="empty"),
    pytest.param(struct.pack("!i", MAX_MESSAGE_BYTES + 2), "bad message length", id="long"),
    pytest.param(struct.pack("!i", 3) + bytes([Kind.ORDER]) + b"{}", _NO_ORDER, id="no order"),
    pytest.param(b"", "", id="gone"),
]


@pytest.mark.parametrize(("sent", "said"), _NONSENSE)
def test_nonsense_of_another_node_ends_its_bridge(door: tuple[Door, socket.socket], sent: bytes, said: str) -> None:
    """If this fails, nonsense of another node ends the runner, takes its memory, or a rank is waited for."""
    with _joined(door) as (connection, runner, _):
        line = Line(connection)
        # Of no world, so they go nowhere.
        line.send(Kind.PHASES, b"x")
        line.send(Kind.LOG, b"x")
        with line.frames:
            os.write(line.frames.fileno(), sent)
        assert runner.recv(1) == b""
        # No end of a bridge to a rank reads an order.
        assert ("has ended" if said in ("", _NO_ORDER) else said) in door[0].lost[3]


def test_the_end_of_a_rank_arrives_although_nobody_reads_its_stacks(
    door: tuple[Door, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, ranks of other nodes "could not be killed": nobody reads stacks after a limit."""
    monkeypatch.setattr("dist_testing.attach.bridge._LIMIT_S", 1)
    with contextlib.ExitStack() as stack:
        pairs = [stack.enter_context(one) for type_ in (1, 5) for one in socket.socketpair(socket.AF_UNIX, type_)]
        board = PhaseBoard.create(4)
        stack.callback(os.close, board)
        connection, _, control = stack.enter_context(_joined(door))
        settings = WorldSettings(backend_named("gloo"), 60.0, init=False)
        more: dict[str, Any] = dict.fromkeys(("umask", "threads", "store_port"), 0) | {"env": {}, "own_ranks": (3,)}
        more |= (
            dict.fromkeys(("pool", "fresh"), False) | {"in_process_of": ""} | dict.fromkeys(("directory", "cwd"), "/")
        )
        request = WorldRequest(1, 4, CaseBody("pytest"), settings=settings, **more)
        wire.send(control, FORK_SERVER_ORDERS, request, [pairs[1].fileno(), pairs[3].fileno(), board])
        line = Line(connection)
        stack.enter_context(line.frames)
        assert line.receive()[0] is Kind.ORDER
        for _ in range(2000):
            line.send(Kind.STACKS, b"x")
        line.send(Kind.EVENT, b"the end")
        assert control.recv(7) == b"the end"


@pytest.mark.parametrize(("sent", "said"), _NONSENSE)
def test_nonsense_of_rank_0_ends_a_process_in_order(sent: bytes, said: str) -> None:
    """If this fails, a process of another node ends with a traceback, or waits for ever."""
    server, other = socket.socketpair()
    fake: Any = SimpleNamespace(fileno=server.fileno)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours = listener.accept()[0]
    with theirs, server, other:
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        with (
            contextlib.closing(FarEnd(ours, 3, fake, 0.0, Path())) as end,
            pytest.raises(LaunchError, match=f"The connection to rank 0 has ended before the run was over: .*{said}"),
        ):
            end.serve()


def test_a_port_of_rank_0_that_is_taken_is_told() -> None:
    """If this fails, the ranks connect to another program, or only torch's error is told."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(LaunchError, match=rf"Rank 0 cannot listen at 127\.0\.0\.1:{port}.*Address already in use"):
            RankInfo(0, 2, "127.0.0.1", port, is_served=False, attempt="").store()


def test_a_store_that_nothing_serves_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, variables of a torchrun that has ended make rank 0 end with an internal error."""
    monkeypatch.setattr(rank_info, "ATTACH_LIMIT_S", 0.1)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        said = rf"Rank 0 of 2 has not found the store at 127\.0\.0\.1:{port}: .*\nIt is that of torchrun's agent"
        with pytest.raises(LaunchError, match=said):
            RankInfo(0, 2, "127.0.0.1", port, is_served=True, attempt="").store()


def test_an_address_that_cannot_be_reached_is_told() -> None:
    """If this fails, the ranks of other nodes wait for minutes for a store that they cannot reach."""
    for host, problem in (("127.0.0.1", "only this machine reaches it"), ("192.0.2.1", "rank 0 cannot listen there")):
        with pytest.raises(LaunchError, match=f"Ranks of other nodes cannot reach rank 0 at {host}: {problem}"):
            rank_info.reachable_host(RankInfo(0, 2, host, 1, is_served=True, attempt=""))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(LaunchError, match=r"cannot reach rank 0's node at 127\.0\.0\.1:.*Connection refused"):
            connect("127.0.0.1", unused.getsockname()[1], "")
    # gloo and NCCL choose the interface by its name.
    assert set(interface_env("127.0.0.1").values()) == {"lo"}
    assert interface_env("192.0.2.1") == {}
