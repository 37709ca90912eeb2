"""What a rank reads of itself, and what the runner makes of answers that are late, cut off, garbage, or never come."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import gc
import os
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed import distributed_c10d

from dist_testing.core.bazel import watch as runner_watch
from dist_testing.core.ground.errors import MessageError
from dist_testing.core.launch import fork_server
from dist_testing.hang import watch
from dist_testing.hang.analysis import RankView, analyse
from dist_testing.hang.ledger import ANSWER_MARK, LEDGERS, Call, Ledger, Wait, WaitKind
from dist_testing.hang.ledger_thread import LedgerThread, read_ledger
from dist_testing.hang.story import rank_ledgers, story_of
from dist_testing.hang.waits import C10D, wait_of
from dist_testing.hang.watch import DeadlockDetector, collect_ledgers
from dist_testing.threaded import members
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
    ("state", "silences", "is_kept"),
    [("R (running)", 1, True), ("R (running)", 2, False), ("S (sleeping)", 1, False), ("T (stopped)", 1, False)],
)
def test_a_rank_that_writes_its_report_does_not_hide_where_it_waited(
    monkeypatch: pytest.MonkeyPatch, state: str, silences: int, is_kept: bool
) -> None:
    """If this fails, a hang has no culprit if the last look meets a rank that parses files for its report."""
    records = [mock.Mock(rank=rank, is_settled=rank == 1, kernel_state=state) for rank in range(2)]
    detector = DeadlockDetector(mock.Mock(records=records, stacks_fds={}, group_limit_s=1.0))
    waits, done = _ledger(), view(1, (), {"0": (0, 1)}, None).ledger
    writes = dataclasses.replace(waits, place="", waits=())
    for answer in (waits, *[None] * silences, writes):
        told = {1: done} if answer is None else {0: answer, 1: done}
        monkeypatch.setattr(watch, "collect_ledgers", lambda *_, told=told: told)
        detector.ask(_SHORT_S)
    assert detector.latest is not None
    assert ("; rank 0 waits for it in all_reduce" in detector.latest.headline) is is_kept


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


_LIMIT = timedelta(seconds=30)
_LIMIT_MS = 30_000


def _wait_in(*functions: tuple[str, str]) -> Wait | None:
    """What is read from the last of functions that call each other, each with the module and the name that it has."""

    def inner() -> Wait | None:
        return wait_of(sys._getframe(1))

    call: Callable[[], Wait | None] = inner
    for module, name in reversed(functions):
        namespace: dict[str, Any] = {"__name__": module, "inner": call}
        exec(f"def {name}():\n    return inner()", namespace)
        call = namespace[name]
    return call()


@pytest.mark.parametrize(
    ("module", "function", "name"),
    [
        ("torch.distributed._functional_collectives", "wait_tensor", "wait_tensor"),
        ("torch.distributed.utils", "_verify_param_shape_across_processes", "DistributedDataParallel"),
        ("torch.autograd.graph", "_engine_run_backward", "backward"),
    ],
)
def test_native_code_of_torch_waits_for_what_it_has_begun(module: str, function: str, name: str) -> None:
    """Only a backward pass can run code of an extension, which waits for anything: it is watched for longer."""
    found = _wait_in((module, function))
    assert found == Wait(WaitKind.SOME_COLLECTIVE, name, is_presumed=name == "backward")
    assert _wait_in(("users_module", function)) is None
    assert _wait_in((module, "another")) is None


def test_operator_of_torch_is_looked_through() -> None:
    """A functional collective waits in frames of torch that call its operators."""
    operator = ("torch._ops", "__call__")
    found = _wait_in(("torch.distributed._functional_collectives", "wait_tensor"), operator)
    assert found == Wait(WaitKind.SOME_COLLECTIVE, "wait_tensor")
    assert _wait_in(("users_module", "wait_tensor"), operator) is None


def test_backward_on_a_gpu_is_not_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """The main thread waits for the GPU then, which goes on by itself."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert _wait_in(("torch.autograd.graph", "_engine_run_backward")) is None


_IN_THE_HELPER = """
def _new_process_group_helper(group_size, global_ranks_in_group, group_name, timeout, store):
    return ProcessGroupGloo(store, timeout)
"""
_IN_A_FUNCTION_OF_ITS_OWN = """
def _create(store, timeout):
    return ProcessGroupGloo(store, timeout)


def _new_process_group_helper(group_size, global_ranks_in_group, group_name, timeout, store):
    return _create(store, timeout)
"""
_WITHOUT_THE_HELPER = """
def _new_process_group_helper(group_size, global_ranks_in_group, group_name, timeout, store):
    return ProcessGroupGloo(store, timeout)


_new_process_group_helper.__code__ = _new_process_group_helper.__code__.replace(co_name="_another")
"""


def _wait_in_new_group(source: str, module: str, ranks: list[int]) -> Wait | None:
    """What is read from a frame that makes a backend's object, in functions with the names that torch gives them."""

    def read(*_: object) -> Wait | None:
        return wait_of(sys._getframe(1))

    namespace: dict[str, Any] = {"__name__": module, "ProcessGroupGloo": read}
    exec(source, namespace)
    found: Wait | None = namespace["_new_process_group_helper"](3, ranks, "1", _LIMIT, SimpleNamespace(timeout=_LIMIT))
    return found


@pytest.mark.parametrize("source", [_IN_THE_HELPER, _IN_A_FUNCTION_OF_ITS_OWN], ids=["torch 2.13", "torch 2.15"])
def test_group_that_is_made(source: str) -> None:
    """Another rank has left `new_group` or `init_process_group` out; torch's releases wait in different functions."""
    some = _wait_in_new_group(source, C10D, [0, 2])
    assert some == Wait(WaitKind.MEETING, "new_group", "1", limit_ms=_LIMIT_MS, ranks=(0, 2))
    every = _wait_in_new_group(source, C10D, [])
    assert every == Wait(WaitKind.MEETING, "init_process_group", "1", limit_ms=_LIMIT_MS, ranks=(0, 1, 2))


def test_group_that_is_made_elsewhere() -> None:
    """A user's own function of that name, and a torch whose function has another name, tell nothing about a group."""
    assert _wait_in_new_group(_IN_A_FUNCTION_OF_ITS_OWN, "users_module", [0]) is None
    assert _wait_in_new_group(_WITHOUT_THE_HELPER, C10D, [0]) is None


@pytest.mark.parametrize(
    ("files", "place"),
    [
        # A user's folders can have the names of libraries.
        (["/home/torch/dist_testing/test_f.py"], "test_f.py:2"),
        ([torch.__file__, "/home/test_f.py"], "test_f.py:2"),
        # Tests can be installed, and have other packages in between.
        (["/x/site-packages/helper/h.py", "/home/test_f.py"], "test_f.py:2"),
        (["/x/site-packages/test_f.py", threading.__file__], "test_f.py:2"),
        # The process that the rank was forked from has frames of its own, which stand for no test.
        ([fork_server.__file__, "/home/main.py"], ""),
    ],
)
def test_line_of_the_test(files: list[str], place: str) -> None:
    """If this fails, a report of a hang has no line of the test, or a line of a program that has started it."""
    call: Callable[[], object] = functools.partial(read_ledger, threading.get_ident(), set())
    # A rank is forked from a process whose own frames stand for no test.
    for file in [*files, fork_server.__file__, "/home/main.py"]:
        names: dict[str, Any] = {"inner": call}
        exec(compile("def call():\n    return inner()\n", file, "exec"), names)
        call = names["call"]
    ledger = call()
    assert isinstance(ledger, Ledger)
    assert ledger.place == place


@pytest.mark.parametrize("own", [(1, 2), (0, 2), (1, 4)])
def test_ranks_that_torch_counts_in_another_way(monkeypatch: pytest.MonkeyPatch, own: tuple[int, int]) -> None:
    """If this fails, a test that reorders or divides its ranks is stopped, and the report blames the wrong rank."""
    group = mock.Mock(rank=lambda: 1, size=lambda: 2)
    world: Any = distributed_c10d._world
    monkeypatch.setattr(world, "default_pg", group)
    monkeypatch.setitem(world.pg_names, group, "0")
    monkeypatch.setitem(world.pg_group_ranks, group, {0: 0, 1: 1})
    ledger = read_ledger(threading.get_ident(), set(), own)
    assert isinstance(ledger, Ledger)
    is_same = own == (1, 2)
    assert ledger.groups == ({"0": (0, 1)} if is_same else {})
    assert ledger.others == (() if is_same else ("a default group with other numbers of ranks",))


@pytest.mark.parametrize(
    "look",
    [
        lambda main: read_ledger(main, set()),
        lambda _: runner_watch._stacks(()),
        lambda _: members._activity((), ()),
    ],
    ids=["ledger", "stacks of the runner", "what threads do"],
)
def test_a_look_at_frames_keeps_nothing_alive(look: Callable[[int], object]) -> None:
    """If this fails, a group that a test has left keeps its connections, and a peer that waits for its end hangs."""

    def test() -> weakref.ref[Any]:
        group = torch.zeros(1)
        helper = threading.Thread(target=look, args=(threading.get_ident(),))
        helper.start()
        helper.join()
        return weakref.ref(group)

    gc.disable()
    try:
        assert test()() is None
    finally:
        gc.enable()


def test_line_of_a_coroutine_that_waits() -> None:
    """If this fails, a report of a hang has the line of a plug-in that runs the event loop."""
    lines = (
        "import asyncio",
        "async def wait(call):",
        "    return await asyncio.to_thread(call, asyncio.get_running_loop())",
        "async def test(call):",
        "    return await wait(call)",
    )
    names: dict[str, Any] = {}
    exec(compile("\n".join(lines), "/home/test_f.py", "exec"), names)
    main = threading.get_ident()

    def call(loop: asyncio.AbstractEventLoop) -> object:
        # The loop runs it when the test waits.
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(60)
        return read_ledger(main, set())

    ledger = asyncio.run(names["test"](call))
    assert isinstance(ledger, Ledger)
    assert ledger.place == "test_f.py:3"
