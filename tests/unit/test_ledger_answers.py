"""What the runner makes of answers that are late, cut off or garbage, and of ranks that never answer."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dist_testing.core.ground.errors import MessageError
from dist_testing.hang.analysis import RankView, analyse
from dist_testing.hang.ledger import ANSWER_MARK, LEDGERS, Call, Ledger, Wait, WaitKind
from dist_testing.hang.ledger_thread import LedgerThread
from dist_testing.hang.story import rank_ledgers, story_of
from dist_testing.hang.watch import DeadlockDetector, collect_ledgers
from tests.support.hang_machine import call, view

SETTINGS = settings(derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
_REQUEST = 7
_MARK = ANSWER_MARK + bytes([_REQUEST])
# Long for a rank that has answered already; only a rank that does not answer takes all of it. Seconds.
_LIMIT_S = 10.0
_SHORT_S = 0.05


def _ledger(number: int = 1) -> Ledger:
    ledger = view(0, [call("0", number)], {"0": (0, 1)}, Wait(WaitKind.COLLECTIVE, "all_reduce", "0")).ledger
    assert ledger is not None
    return ledger


@contextlib.contextmanager
def _ranks(count: int) -> Iterator[tuple[dict[int, int], list[socket.socket]]]:
    """The runner's ends, as rank to descriptor, and the ranks' ends."""
    with contextlib.ExitStack() as stack:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count)]
        for near, far in pairs:
            near.setblocking(False)
            stack.callback(near.close)
            stack.callback(far.close)
        yield {rank: near.fileno() for rank, (near, _) in enumerate(pairs)}, [far for _, far in pairs]


def test_a_file_that_has_got_the_number_of_the_socket_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test may close descriptors that it does not know; its own files then get their numbers."""
    # No fork of a later test starts the thread again.
    monkeypatch.setattr(LedgerThread, "in_use", None)
    file = tmp_path / "own"
    file.write_bytes(b"content")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, file.open("r+b", buffering=0) as own:
        helper = LedgerThread(theirs.fileno())
        os.dup2(own.fileno(), theirs.fileno())
        # The thread may have seen the file already, and be gone.
        with contextlib.suppress(OSError):
            ours.send(b"\1")
        assert helper._ended.acquire(timeout=60), "it still serves"
        assert own.tell() == 0
    assert file.read_bytes() == b"content"


def test_answer_that_is_cut_off_says_so() -> None:
    """At whatever byte: a ledger that lacks its end must not pass for one that has less."""
    whole = LEDGERS.to_wire(_ledger())
    for end in range(len(whole)):
        with pytest.raises(MessageError):
            LEDGERS.from_wire(whole[:end])
    with _ranks(1) as (fds, (far,)):
        # The first request of a world has number 1.
        far.send(ANSWER_MARK + b"\1" + whole[:-1])
        world = mock.Mock(records=[mock.Mock(rank=0, is_settled=False)], stacks_fds=fds, group_limit_s=1.0)
        free = DeadlockDetector(world).ask(_LIMIT_S).free
    assert free[0].startswith("gave no answer (its answer cannot be read: ")


@pytest.mark.parametrize(
    "before",
    [
        pytest.param([b"Thread 0x1 (most recent call first):\n"], id="a stack"),
        pytest.param([ANSWER_MARK + bytes([_REQUEST - 1]) + LEDGERS.to_wire(_ledger(9))], id="a late answer"),
        pytest.param([ANSWER_MARK, b"\xff" * 5000], id="garbage without a number"),
    ],
)
def test_answer_after_something_else(before: Sequence[bytes]) -> None:
    """An answer to an earlier question describes another moment."""
    with _ranks(1) as (fds, (far,)):
        for packet in (*before, _MARK + LEDGERS.to_wire(_ledger())):
            far.send(packet)
        assert collect_ledgers(fds, _REQUEST, _LIMIT_S) == {0: _ledger()}


def test_ranks_that_do_not_answer() -> None:
    """One is silent, one has closed its end, and one reads nothing, so that no question gets through to it."""
    with _ranks(4) as (fds, ranks):
        ranks[1].close()
        with contextlib.suppress(BlockingIOError), socket.socket(fileno=fds[2]) as near:
            near.setblocking(False)
            try:
                while True:
                    near.send(b"\0")
            finally:
                near.detach()
        ranks[3].send(_MARK + LEDGERS.to_wire(_ledger()))
        assert collect_ledgers(fds, _REQUEST, _SHORT_S) == {3: _ledger()}


_NAMES = st.sampled_from(["0", "1", ""])
_RANKS = st.lists(st.integers(-1, 6), max_size=4).map(tuple)
_CALLS = st.lists(
    st.builds(
        Call,
        _NAMES,
        st.integers(0, 1),
        st.integers(0, 3),
        st.sampled_from(["gloo", "nccl", "no such backend", ""]),
        st.sampled_from(["all_reduce", "gather", ""]),
        st.sampled_from(["[[3]]", "[[3", "3", '{"a": 1}', "[[-1]]", "[[1e999]]", "[" * 3000]),
        st.sampled_from(["Float", ""]),
        st.booleans(),
        st.sampled_from([0, 300_000]),
    ),
    max_size=4,
).map(tuple)
_LEDGERS = st.builds(
    Ledger,
    st.booleans(),
    st.booleans(),
    st.dictionaries(_NAMES, _RANKS, max_size=2),
    _CALLS,
    st.dictionaries(_NAMES, st.integers(0, 3)),
    st.just(())
    | st.tuples(
        st.builds(
            Wait,
            st.sampled_from(WaitKind),
            st.just("call"),
            _NAMES,
            st.integers(-1, 6),
            st.integers(-1, 1),
            st.sampled_from([0, 300_000]),
            _RANKS,
            st.booleans(),
        )
    ),
    st.sampled_from(["", "test_f.py:6"]),
    st.integers(0, 3),
    st.sampled_from([(), ("another thread",)]),
    _CALLS,
)


@SETTINGS
@given(st.lists(st.tuples(_LEDGERS, st.sampled_from(["", "ended the test"])), min_size=1, max_size=4))
def test_ledgers_without_sense_break_nothing(told: list[tuple[Ledger, str]]) -> None:
    """A rank can write what it likes: a well-formed ledger may contradict itself and those of the others."""
    ledgers = [LEDGERS.from_wire(LEDGERS.to_wire(ledger)) for ledger, _ in told]
    assert ledgers == [ledger for ledger, _ in told]
    analysis = analyse([RankView(rank, ended, ledger) for rank, (ledger, ended) in enumerate(told)])
    story = story_of(analysis)
    if analysis.is_proven:
        assert set(story.culprits) | set(story.suspects) <= set(range(len(told)))
    assert len(rank_ledgers(analysis)) == len(told)
