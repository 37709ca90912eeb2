"""Rank 0 of an attached world, and the peers that connect to its socket."""

from __future__ import annotations

import contextlib
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
from dist_testing.errors import LaunchError
from dist_testing.process import wire

_Visit = Callable[[socket.socket], None]


def _say(data: bytes) -> _Visit:
    return lambda connection: connection.sendall(data)


def _come_and_go(connection: socket.socket) -> None:
    _come_as(1)(connection)
    connection.close()


def _message(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


@pytest.fixture
def admit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., AttachedLauncher]]:
    """Rank 0 of a world, to which these come in this order, all before it listens to the first."""
    with contextlib.ExitStack() as stack:

        def admit(*visits: _Visit, size: int = 2) -> AttachedLauncher:
            folder = Path(stack.enter_context(_short_folder()))

            def come(_: str, path: str) -> None:
                for visit in visits:
                    connection = stack.enter_context(socket.socket(socket.AF_UNIX))
                    connection.connect(path)
                    visit(connection)

            store = SimpleNamespace(set=come)
            rank_info: Any = SimpleNamespace(size=size, store=lambda: store)
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


def _come_as(rank: object) -> _Visit:
    return lambda connection: wire.send(connection, {"rank": rank})


@pytest.mark.parametrize(
    "visit",
    [
        _say(b""),
        _say(b"\0\0"),
        _say(_message(b"{")),
        _say(_message(b"[]")),
        _say(_message(b'"rank"')),
        _say(_message(b'{"rank": 1}')),
        _come_as(None),
        _come_as([1]),
        _come_as(0),
        _come_as(2),
        _come_and_go,
    ],
    ids=["nothing", "half", "no JSON", "list", "text", "no fds", "null", "in a list", "rank 0", "beyond", "gone"],
)
def test_who_says_something_else_does_not_keep_the_ranks_out(
    admit: Callable[..., AttachedLauncher], visit: _Visit
) -> None:
    """A rank that was killed in the middle of a word would end the run of all others, or make them wait for long."""
    launcher = admit(visit, _come_as(1))
    assert launcher.gone == []
    assert set(launcher._peers) == {0, 1}


def test_a_word_may_come_in_parts(admit: Callable[..., AttachedLauncher]) -> None:
    """The kernel promises nothing else."""
    whole = _message(b'{"rank": 1, "fds": 0}')

    def in_parts(connection: socket.socket) -> None:
        for byte in whole:
            connection.sendall(bytes([byte]))

    assert set(admit(in_parts)._peers) == {0, 1}


def test_who_does_not_come_is_named(admit: Callable[..., AttachedLauncher], monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has to look at that rank."""
    monkeypatch.setattr(module, "ATTACH_LIMIT_S", 0.01)
    with pytest.raises(LaunchError, match=r"Rank\(s\) 1, 2 of 3 did not connect"):
        admit(_say(b"\0"), size=3)


def test_rank_0_can_end_its_part_when_the_launcher_has_been_closed() -> None:
    """The watching thread closes it when a rank cannot be stopped; rank 0, in its own thread, may come back later."""
    rank_info: Any = SimpleNamespace(size=1)
    launcher = AttachedLauncher(rank_info, SimpleNamespace())  # type: ignore[arg-type]  # nobody else comes
    rank: Any = SimpleNamespace(_connection=launcher.own_end)
    with launcher.own_end:
        launcher.close()
        AttachedRank._say_over(rank, 1)
