"""The state that a case leaves in a pooled rank."""

from __future__ import annotations

import os
import random
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from dist_testing.errors import StateLeakError
from dist_testing.rank.state import RankState


def test_every_case_gets_the_same_random_numbers_as_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a test passes or fails by which tests ran before it."""
    # A replacement for numpy, which not every target has.
    numpy: Any = ModuleType("numpy")
    numpy.drawn = 7
    numpy.random = SimpleNamespace(
        get_state=lambda: numpy.drawn, set_state=lambda drawn: setattr(numpy, "drawn", drawn)
    )
    monkeypatch.setitem(sys.modules, "numpy", numpy)
    state = RankState.now()
    first = (random.random(), torch.rand(1).item(), numpy.drawn)
    numpy.drawn += 1
    state.rewind_generators()
    assert (random.random(), torch.rand(1).item(), numpy.drawn) == first


def test_a_thread_and_a_pipe_that_end_a_moment_later_are_not_left_behind() -> None:
    """If this fails, a correct test of a data loader fails now and then by the thread that feeds a queue."""
    state = RankState.now()
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


def test_what_does_not_end_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, the wait hides a thread or a pipe that the next case would see."""
    monkeypatch.setattr("dist_testing.rank.state._LEAVING_S", 0.1)
    state = RankState.now()
    ends = os.pipe()
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="left")
    thread.start()
    with pytest.raises(StateLeakError, match=r"open file\(s\) pipe:.*; running thread\(s\) left\."):
        state.verify()
    for fd in ends:
        os.close(fd)
    end.set()
    thread.join()
    state.verify()


def test_what_torch_compile_keeps_is_not_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, every first case of a worker pool that compiles something fails."""
    async_compile = pytest.importorskip("torch._inductor.async_compile")
    monkeypatch.setattr("torch._inductor.config.compile_threads", 2)
    state = RankState.now()
    monkeypatch.setenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", "1")
    pool = async_compile.AsyncCompile.pool
    assert pool().submit(threading.get_ident).result() in {thread.ident for thread in threading.enumerate()}
    try:
        state.verify()
    finally:
        pool().shutdown()
        pool.cache_clear()
