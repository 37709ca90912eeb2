"""Messages that a process of a run cannot read: each costs one case, and the error says what to do.

tests/unit/test_messages.py has every wrong message.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator

import pytest

from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.rank_record import RankRecord
from dist_testing.core.ground.errors import LaunchError
from dist_testing.core.ground.outcomes import Cause, Status
from dist_testing.core.launch import fork_server
from dist_testing.core.launch.fork import ForkServerLauncher
from dist_testing.core.process.launcher_messages import FORK_SERVER_EVENTS, FORK_SERVER_ORDERS
from tests.support.worlds import engine_for, run

_ORDERS = FORK_SERVER_ORDERS.schema
_EVENTS = FORK_SERVER_EVENTS.schema


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An engine of its own; at the end nothing may be left of it."""
    with engine_for({"nothing": lambda _, __: None}) as engine:
        yield engine


def _passes(engine: Engine) -> bool:
    return run(engine, "nothing", world_size=2, init=False).verdict.status is Status.PASSED


def _framed(content: object, fds: int = 0) -> bytes:
    payload = json.dumps(content).encode()
    return struct.pack(">IH", len(payload), fds) + payload


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"\0\0\0\2\0\0{]", "order to the fork server: not JSON"),
        (
            _framed({"schema": _ORDERS, "message": "SignalRanks", "ranks": [], "number": 9}, fds=1) + b"\0",
            "without its 1 desc",
        ),
    ],
    ids=["not JSON", "no descriptor"],
)
def test_order_that_the_fork_server_cannot_read_costs_one_case(engine: Engine, sent: bytes, said: str) -> None:
    """A test may write to any descriptor; the error names the message, and shows no traceback of ours."""
    launcher, _ = engine.prepare()
    assert isinstance(launcher, ForkServerLauncher)
    launcher._control.sendall(sent)
    with pytest.raises(LaunchError, match=said) as caught:
        run(engine, "nothing", world_size=2, init=False)
    assert "Traceback" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 3
    assert _passes(engine)


def test_request_with_other_descriptors_than_it_needs_costs_one_case(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank would get another one's channel, or the store's socket for its board."""
    launcher, _ = engine.prepare()
    start = launcher.start
    monkeypatch.setattr(launcher, "start", lambda request, fds: start(request, fds[:-1]))
    with pytest.raises(LaunchError, match=r"world 1 came with 5 descriptors; expected 6\.\n"):
        run(engine, "nothing", world_size=2, init=False)
    assert _passes(engine)


@pytest.mark.parametrize(
    ("instead", "said"),
    [
        (lambda event: b"\0\0\0\2\0\0{]", r"event of the fork server: not JSON: b'{\]'\."),
        (
            lambda event: _framed(
                {"schema": _EVENTS, "message": "RankEnded", "world": 1, "rank": 7, "exit_code": 0, "reason": ""}
            ),
            "Rank 7",
        ),
    ],
    ids=["not JSON", "no such rank"],
)
def test_event_that_the_runner_cannot_read_costs_one_case(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, instead: Callable[[object], bytes], said: str
) -> None:
    """Otherwise the runner would end by a traceback of ours, or wait for an end that it has not understood."""
    with monkeypatch.context() as patch:
        # In the fork server, which this process becomes by a fork.
        patch.setattr(fork_server._ForkServer, "_send", lambda self, event: self._control.sendall(instead(event)))
        with pytest.raises(LaunchError, match=said) as caught:
            run(engine, "nothing", world_size=2, init=False)
    assert len(str(caught.value).splitlines()) == 3
    assert _passes(engine)


def test_instruction_that_a_rank_cannot_read_is_no_fault_of_the_test(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test that reads from a descriptor of ours takes a part of it."""
    with monkeypatch.context() as patch:
        patch.setattr(RankRecord, "instruct", lambda self, _: self.channel.sendall(b"\0\0\0\2\0\0{]"))
        result = run(engine, "nothing", world_size=2, init=False)
    assert (result.verdict.status, result.verdict.cause) == (Status.FAILED, Cause.INFRASTRUCTURE), result
    assert all("instruction to a rank: not JSON" in outcome.text for outcome in result.outcomes), result
    assert _passes(engine)
