"""A plugin of pytest for suites with DeepSpeed's `DistributedTest`: `pytest -p dist_testing.adopt.deepspeed`.

Their own hooks and classes read fixtures, marks and settings as before. Only the two methods that start processes are
replaced, on the classes that define them: the ranks are forked from the test's process and run on the engine.
"""

from __future__ import annotations

import functools
import queue
import socket
import unittest
from collections.abc import Callable, Generator
from typing import Any

import pytest

from dist_testing.adopt.on_ranks import keeps_own_way, run_on_ranks
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.spec import check_world_size
from dist_testing.core.launch.clean import spare_cuda

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

# What their classes have: the mark of a test's and of a fixture's class, the methods that start processes, and what
# these call in each process.
_MARKS = ("is_dist_test", "is_dist_fixture")
_LAUNCHERS = ("_launch_daemonic_procs", "_launch_non_daemonic_procs")
_ON_RANK, _AFTER = "_dist_run", "_dist_destroy"

# At import, before a test file asks for the GPUs: no rank could be forked then.
spare_cuda()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Replace the methods of the item's class, before the hook of the suite calls it."""
    _adopt(getattr(item, "cls", None))
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Generator[None, Any, Any]:
    """Replace the methods of a fixture's class, before the hook of the suite calls it."""
    _adopt(fixturedef.func)
    return (yield)


def _adopt(cls: Any) -> None:
    if not isinstance(cls, type) or not any(getattr(cls, mark, False) for mark in _MARKS):
        return
    if missing := [name for name in (*_LAUNCHERS, _ON_RANK) if not callable(getattr(cls, name, None))]:
        raise UsageError(
            f"{cls.__module__}.{cls.__qualname__}: the class has no {', '.join(missing)}.\n"
            "It is marked as a class of DeepSpeed's tests, and its version is not one that the adapter knows.\n"
            "Run it without -p dist_testing.adopt.deepspeed."
        )
    for owner in cls.__mro__:
        for name in _LAUNCHERS:
            original = vars(owner).get(name)
            if original is not None and not hasattr(original, "__wrapped__"):
                setattr(owner, name, _replacement(original))


def _replacement(original: Callable[..., Any]) -> Callable[..., None]:
    @functools.wraps(original)
    def launch(self: Any, num_procs: int, init_method: str) -> None:
        __tracebackhide__ = True
        name = _name(self)
        if keeps_own_way(name, "its own processes run it"):
            original(self, num_procs, init_method)
            return
        check_world_size(name, num_procs, "Set world_size of the class, or in the mark of the test.")
        call = functools.partial(_call, self, num_procs, _port(), init_method)
        run_on_ranks(call, name, num_procs, float(self.exec_timeout) if getattr(self, "exec_timeout", None) else None)

    return launch


def _call(test: Any, num_procs: int, port: str, init_method: str, rank: int) -> None:
    """Run the test or the fixture on a rank, as a process of the suite does."""
    skips: queue.SimpleQueue[str] = queue.SimpleQueue()
    uses_queue = bool(getattr(test, "non_daemonic_procs", False))
    reason = getattr(test, _ON_RANK)(rank, num_procs, port, init_method, skips if uses_queue else "")
    if isinstance(reason, str) and reason:
        skips.put(reason)
    if not skips.empty():
        raise unittest.SkipTest(skips.get())
    if not uses_queue and (after := getattr(test, _AFTER, None)) is not None:
        after()


def _port() -> str:
    """Return a free port. The rendezvous of the suite is a file, so few tests use the port."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return str(chosen.getsockname()[1])


def _name(test: Any) -> str:
    function = getattr(getattr(test, "_current_test", None), "__name__", "")
    return ".".join(filter(None, (type(test).__module__, type(test).__qualname__, function)))
