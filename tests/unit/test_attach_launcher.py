"""Rank 0 of a world that torchrun started, and the processes that connect to its socket."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dist_testing.attach import launcher as module
from dist_testing.attach.launcher import AttachedLauncher
from dist_testing.attach.rank import AttachedRank
from dist_testing.core.ground.errors import LaunchError

_Visit = Callable[[socket.socket], None]


def _send(data: bytes) -> _Visit:
    return lambda connection: connection.sendall(data)


def _connect_and_leave(connection: socket.socket) -> None:
    _connect_as(1)(connection)
    connection.close()


def _message(payload: bytes, fds: int = 0) -> bytes:
    return struct.pack(">IH", len(payload), fds) + payload


@pytest.fixture
def admit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., AttachedLauncher]]:
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

            store = SimpleNamespace(set=connect, check=lambda keys: False)
            rank_info: Any = SimpleNamespace(
                size=size,
                store=lambda: store,
                has_other_nodes=False,
                is_served=False,
                node_key="here",
                launcher="torchrun",
            )
            run: Any = SimpleNamespace(temp=str(folder), directories=[str(folder)])
            launcher = AttachedLauncher(rank_info, run)
            stack.callback(launcher.own_end.close)
            stack.callback(launcher.close)
            return launcher

        yield admit


@contextlib.contextmanager
def _short_folder() -> Iterator[str]:
    # The path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield folder


def _connect_as(rank: object) -> _Visit:
    return _send(_message(json.dumps({"schema": 2, "message": "Hello", "rank": rank, "node": ""}).encode()))


@pytest.mark.parametrize(
    "visit",
    [
        _send(b""),
        _send(b"\0\0"),
        _send(_message(b"{")),
        _send(_message(b"[]")),
        _send(_message(b'"rank"')),
        _send(_message(b'{"rank": 1}')),
        _send(_message(b'{"schema": 2, "message": "Hello"}')),
        _send(_message(b'{"schema": 2, "message": "Hello", "rank": 1, "node": "", "more": 1}')),
        _send(_message(b'{"schema": 2, "message": "PartOver", "exit_code": 0}')),
        _send(_message(b'{"schema": 2, "message": "Hello", "rank": 1, "node": ""}', fds=1)),
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
        "descriptors",
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
    assert set(launcher._peers) == {0, 1}


def test_a_message_may_arrive_in_pieces(admit: Callable[..., AttachedLauncher]) -> None:
    """If this fails, a message that the kernel delivers in pieces is lost."""
    whole = _message(b'{"schema": 2, "message": "Hello", "rank": 1, "node": ""}')

    def in_parts(connection: socket.socket) -> None:
        for byte in whole:
            connection.sendall(bytes([byte]))

    assert set(admit(in_parts)._peers) == {0, 1}


def test_rank_of_another_version_ends_the_wait(admit: Callable[..., AttachedLauncher]) -> None:
    """It would be missed only after a long wait, and the error would not name the reason."""
    newer = _send(_message(b'{"schema": 3, "message": "Hello", "rank": 1, "name": "r"}'))
    with pytest.raises(LaunchError, match=r"schema 3 .*schema 2\.\n.*\n.*one version of dist_testing"):
        admit(newer, _connect_as(1))


def test_ranks_that_do_not_connect_are_named(
    admit: Callable[..., AttachedLauncher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, the user does not learn which rank to look at."""
    monkeypatch.setattr(module, "ATTACH_LIMIT_S", 0.01)
    with pytest.raises(LaunchError, match=r"Rank\(s\) 1, 2 of 3 did not connect"):
        admit(_send(b"\0"), size=3)


def test_rank_0_can_finish_after_the_launcher_was_closed() -> None:
    """If this fails, rank 0 raises when it ends after the watching thread closed the launcher.

    That thread closes it when a rank cannot be stopped.
    """
    rank_info: Any = SimpleNamespace(size=1, has_other_nodes=False)
    launcher = AttachedLauncher(rank_info, SimpleNamespace())  # type: ignore[arg-type]  # no other rank connects
    rank: Any = SimpleNamespace(_connection=launcher.own_end)
    with launcher.own_end:
        launcher.close()
        AttachedRank._say_over(rank, 1)
