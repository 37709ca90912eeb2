"""The process of rank 0 under torchrun, and the processes that connect to its socket."""

from __future__ import annotations

import contextlib
import json
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
from dist_testing.attach import waiting
from dist_testing.attach.collected import first_difference, to_text
from dist_testing.attach.launcher import AttachedLauncher
from dist_testing.attach.rank_info import RankInfo
from dist_testing.core.ground.errors import LaunchError

_Visit = Callable[[socket.socket], None]


def _send(data: bytes, *, brings_server: bool = False) -> _Visit:
    def send(connection: socket.socket) -> None:
        connection.sendall(data)
        if brings_server:
            one, other = socket.socketpair()
            with one, other:
                socket.send_fds(connection, [b"\0"], [one.fileno()])

    return send


def _connect_and_leave(connection: socket.socket) -> None:
    _connect_as(1)(connection)
    connection.close()


def _message(payload: bytes, fds: int = 0) -> bytes:
    return struct.pack(">IH", len(payload), fds) + payload


class _OwnServer:
    """Stands for the fork server of rank 0."""

    unclean_reasons = ()

    def __init__(self, run: object) -> None:
        self._end, self._other = socket.socketpair()
        self.fileno = self._end.fileno

    def close(self) -> None:
        """End."""
        self._end.close()
        self._other.close()


@pytest.fixture
def told() -> list[str]:
    """What the launcher has told."""
    return []


@pytest.fixture
def admit(monkeypatch: pytest.MonkeyPatch, told: list[str]) -> Iterator[Callable[..., AttachedLauncher]]:
    """Create rank 0's launcher; these clients connect in this order before it accepts the first."""
    with contextlib.ExitStack() as stack:

        def admit(*visits: _Visit, size: int = 2) -> AttachedLauncher:
            folder = Path(stack.enter_context(_short_folder()))

            def connect(_: str, home: str) -> None:
                path = json.loads(home)["path"]
                for visit in visits:
                    connection = stack.enter_context(socket.socket(socket.AF_UNIX))
                    connection.connect(path)
                    visit(connection)

            store = SimpleNamespace(set=lambda key, value: connect(key, value) if key == module.HOME_KEY else None)
            rank_info: Any = SimpleNamespace(
                size=size,
                store=lambda: store,
                has_other_nodes=False,
                is_served=False,
                node_key="here",
                launcher="torchrun",
                rank=0,
                address="127.0.0.1",
                port=1,
                variable="RANK",
            )
            run: Any = SimpleNamespace(temp=str(folder), directories=[str(folder)])
            launcher = AttachedLauncher(rank_info, run, "127.0.0.1", ["test_a"], told.append)
            stack.callback(launcher.close)
            return launcher

        monkeypatch.setattr("dist_testing.attach.messages._JOINING_LIMIT_S", 0.2)
        # No tests are forked here.
        monkeypatch.setattr(module, "ForkServerLauncher", _OwnServer)
        yield admit


@contextlib.contextmanager
def _short_folder() -> Iterator[str]:
    # The path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield folder


def _hello(rank: object = 1, fds: int = 1, **changed: object) -> bytes:
    fields = {"schema": 3, "message": "Joining", "rank": rank, "difference": "", "node": "", **changed}
    return _message(json.dumps(fields).encode(), fds)


def _connect_as(rank: object) -> _Visit:
    return _send(_hello(rank), brings_server=True)


@pytest.mark.parametrize(
    "visit",
    [
        _send(b""),
        _send(b"\0\0"),
        _send(_message(b"{")),
        _send(_message(b"[]")),
        _send(_message(b'"rank"')),
        _send(_message(b'{"rank": 1}')),
        _send(_message(b'{"schema": 3, "message": "Joining"}')),
        _send(_hello(more=1)),
        _send(_message(b'{"schema": 3, "message": "Lost", "reason": ""}')),
        _send(_hello(fds=0)),
        _send(struct.pack(">IH", 0xFFFFFFFF, 0)),
        _connect_as(None),
        _connect_as([1]),
        _connect_as(0),
        _connect_as(2),
        _connect_and_leave,
    ],
    ids=[
        "nothing",
        "half",
        "no JSON",
        "list",
        "text",
        "no schema",
        "no rank",
        "more",
        "another message",
        "no fork server",
        "too long",
        "null",
        "in a list",
        "rank 0",
        "beyond",
        "gone",
    ],
)
def test_invalid_clients_do_not_keep_the_ranks_out(admit: Callable[..., AttachedLauncher], visit: _Visit) -> None:
    """If this fails, a rank that was killed while it connected ends the run of all others, or delays it long."""
    launcher = admit(visit, _connect_as(1))
    assert launcher.gone == []
    assert set(launcher._peers) == {1}


def test_a_message_may_arrive_in_pieces(admit: Callable[..., AttachedLauncher], told: list[str]) -> None:
    """If this fails, a message that the kernel delivers in pieces is lost."""

    def in_parts(connection: socket.socket) -> None:
        *whole, last = _hello(difference="rank 0 has test_a, and rank 1 does not")
        for byte in whole:
            connection.sendall(bytes([byte]))
        _send(bytes([last]), brings_server=True)(connection)

    assert set(admit(in_parts)._peers) == {1}
    assert told == [
        "dist_testing: rank 1 has not collected the tests of rank 0: rank 0 has test_a, and rank 1 does not"
    ]


def test_rank_of_another_version_ends_the_wait(admit: Callable[..., AttachedLauncher]) -> None:
    """It would be missed only after a long wait, and the error would not name the reason."""
    with pytest.raises(LaunchError, match=r"schema 4 .*schema 3\.\n.*\n.*one version of dist_testing"):
        admit(_send(_hello(schema=4)), _connect_as(1))


def test_ranks_that_do_not_connect_are_named(
    admit: Callable[..., AttachedLauncher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, the user does not learn which rank to look at."""
    monkeypatch.setattr(module, "ATTACH_LIMIT_S", 0.01)
    monkeypatch.setattr(module, "ended_ranks", lambda *_: [])
    with pytest.raises(LaunchError, match=r"Rank\(s\) 1, 2 of 3 did not connect"):
        admit(_send(b"\0"), size=3)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (["b", "a"], ""),
        (["a"], "rank 0 has b, and rank 3 does not"),
        (["a", "b", "c", "d"], "rank 3 has c, and rank 0 does not (1 more differ)"),
    ],
)
def test_the_first_difference_of_two_collections(own: list[str], expected: str) -> None:
    """If this fails, a rank with other tests is found only when a case hangs, or the order of tests is a difference."""
    assert first_difference(3, own, to_text(["a", "b"])) == expected


def test_no_wait_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a user who has set RANK for another reason sees nothing for five minutes."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(waiting, "_NEXT_S", 0.01)
    rank_info = RankInfo(0, 2, "127.0.0.1", 29511, is_served=True, attempt="")
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    with waiting.saying_who_is_missing(rank_info, lambda: [1], lines.put, first_s=0.01):
        said = [lines.get(timeout=60) for _ in range(2)]
    line = "waiting for rank 1 of 2 at 127.0.0.1:29511 (RANK=0 is set; not under torchrun? unset RANK)"
    assert said == [line, line]
