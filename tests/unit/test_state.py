"""The state that a case leaves in a pooled rank."""

from __future__ import annotations

import functools
import gc
import logging
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from dist_testing.core.ground.case import KEEPABLE, check_keepable
from dist_testing.core.ground.errors import StateLeakError
from dist_testing.hang.ledger import ANSWER_MARK, NoLedger
from dist_testing.hang.ledger_thread import LedgerThread
from dist_testing.pool_state import RankState
from tests.support.results import refusal


def test_every_case_gets_the_same_random_numbers_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a test passes or fails by which tests ran before it."""
    # A replacement for numpy, which not every target has.
    numpy: Any = ModuleType("numpy")
    numpy.drawn = 7
    numpy.random = SimpleNamespace(
        get_state=lambda: numpy.drawn, set_state=lambda drawn: setattr(numpy, "drawn", drawn)
    )
    monkeypatch.setitem(sys.modules, "numpy", numpy)
    state = RankState()
    first = (random.random(), torch.rand(1).item(), numpy.drawn)
    numpy.drawn += 1
    state.rewind_generators()
    assert (random.random(), torch.rand(1).item(), numpy.drawn) == first


def test_a_thread_and_a_pipe_that_end_a_moment_later_are_not_left_behind() -> None:
    """If this fails, a correct test of a data loader fails now and then by the thread that feeds a queue."""
    state = RankState()
    ends = os.pipe()
    is_looked_at = threading.Event()

    def leave() -> None:
        is_looked_at.wait(0.2)
        for fd in ends:
            os.close(fd)

    thread = threading.Thread(target=leave)
    thread.start()
    state.verify()
    thread.join()


def test_what_cuda_keeps_open_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA and NCCL open pipes and sockets at any call. Files of the test still count."""
    state = RankState()
    with socket.socket(), (tmp_path / "log").open("w"):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        with pytest.raises(StateLeakError, match=r"open file\(s\) \S+log\.\n"):
            state.verify()
        monkeypatch.undo()
        with pytest.raises(StateLeakError, match="socket:"):
            state.verify()


def test_what_does_not_end_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, the wait hides a thread or a pipe that the next case would see, or a project cannot keep it."""
    monkeypatch.setattr("dist_testing.pool_state._LEAVING_S", 0.1)
    state = RankState()
    ends = os.pipe()
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="left")
    thread.start()
    with pytest.raises(StateLeakError, match=r"open file\(s\) pipe:.*; running thread\(s\) left\."):
        state.verify()
    state.verify(may_change=["files", "threads", "processes"])
    for fd in ends:
        os.close(fd)
    end.set()
    thread.join()
    state.verify()


def test_what_torch_compile_keeps_is_not_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, every first case of a worker pool that compiles something fails."""
    async_compile = pytest.importorskip("torch._inductor.async_compile")
    monkeypatch.setattr("torch._inductor.config.compile_threads", 2)
    state = RankState()
    monkeypatch.setenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", "1")
    pool = async_compile.AsyncCompile.pool
    assert pool().submit(threading.get_ident).result() in {thread.ident for thread in threading.enumerate()}
    try:
        state.verify()
    finally:
        pool().shutdown()
        pool.cache_clear()


@pytest.mark.parametrize(
    ("change", "undo", "said"),
    [
        (lambda: os.umask(0o777), os.umask, r"umask, from 0o\d+ to 0o777"),
        (
            lambda: logging.disable(logging.ERROR),
            lambda _: logging.disable(logging.NOTSET),
            r"logging\.disable, from 0 to 40",
        ),
        (lambda: sys.path.append("/left"), lambda _: sys.path.remove("/left"), r"sys\.path, now with '/left'"),
        (
            lambda: torch.set_float32_matmul_precision("medium"),
            lambda _: torch.set_float32_matmul_precision("highest"),
            "float32 matmul precision, from highest to medium",
        ),
    ],
    ids=["umask", "logging", "sys.path", "torch"],
)
def test_settings_that_the_next_case_would_see_are_reported(
    change: Callable[[], Any], undo: Callable[[Any], Any], said: str, request: pytest.FixtureRequest
) -> None:
    """If this fails, the case that changed the setting passes, and the next one fails for no reason of its own."""
    state = RankState()
    before = change()
    try:
        with pytest.raises(StateLeakError, match=said):
            state.verify()
        state.verify(may_change=[request.node.callspec.id])
    finally:
        undo(before)
    state.verify()


def test_variables_are_kept_by_name_or_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a project has to give up all checks for one variable of a library."""
    state = RankState()
    monkeypatch.setenv("OF_LIBRARY_A", "1")
    state.verify(may_change=["env:OF_LIBRARY_*"])
    state.verify(may_change=["env"])
    with pytest.raises(StateLeakError, match=r"environment variable\(s\) OF_LIBRARY_A\."):
        state.verify(may_change=["env:OF_LIBRARY_B", "cwd", "torch"])


def test_what_pytest_and_setuptools_change_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a case of a pool that runs pytest, or that builds an extension of torch, fails."""
    state = RankState()
    monkeypatch.setattr(sys, "path", [*sys.path, "/site-packages/setuptools/_vendor"])
    # A pytest that another pytest has started removes the outer one's.
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    state.verify()


def test_names_of_kept_state_are_checked() -> None:
    """If this fails, a misspelt name keeps nothing, and its user looks for the reason in the test."""
    for names in ("everything", ["cwd", "environment"], [3], ["env:"]):
        first, _, way_out = refusal(functools.partial(check_keepable, "dist_pool_keeps", names)).splitlines()
        assert first.startswith("dist_pool_keeps has ")
        assert "; expected cwd, env, " in first
        assert way_out.startswith("Write cwd")
    assert check_keepable("it", ["cwd", "env:A*"]) == ("cwd", "env:A*")
    assert check_keepable("it", KEEPABLE) == KEEPABLE
    assert check_keepable("it", "cwd") == ("cwd",)


def test_a_file_that_the_ledger_reads_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a good test of a worker pool fails now and then by a file that this library has open."""
    is_open = threading.Event()

    def read_slowly(*_: object, **__: object) -> NoLedger:
        with (tmp_path / "file").open("w"):
            is_open.set()
            time.sleep(0.1)
        return NoLedger("")

    monkeypatch.setattr("dist_testing.hang.ledger_thread.read_ledger", read_slowly)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # No fork of a later test starts the thread again.
    monkeypatch.setattr(LedgerThread, "in_use", None)
    with ours, theirs:
        ledger = LedgerThread(theirs.fileno())
        state = RankState()
        ours.send(b"\1")
        assert is_open.wait(60)
        state.verify()
        assert ours.recv(1 << 16).startswith(ANSWER_MARK + b"\1")
        ledger.step_aside()


class _Holder:
    """Holds a descriptor until the garbage collector finds it, because it refers to itself."""

    def __init__(self, path: Path) -> None:
        self._itself = self
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT)

    def __del__(self) -> None:
        os.close(self._fd)


def test_a_file_of_garbage_is_not_left_behind(tmp_path: Path) -> None:
    """If this fails, a test that has closed a pool of processes passes or fails by the time of a garbage collection."""
    state = RankState()
    gc.disable()
    try:
        _Holder(tmp_path / "file")
        state.verify()
    finally:
        gc.enable()
