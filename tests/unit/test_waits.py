"""What a blocked thread waits for, read from torch's frames; and what is not read from them."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dist_testing.core.launch import fork_server
from dist_testing.hang.ledger import Ledger, Wait, WaitKind
from dist_testing.hang.ledger_thread import read_ledger
from dist_testing.hang.waits import C10D, wait_of

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
