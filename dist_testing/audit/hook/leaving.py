"""Makes a function of a rank return early: raises `Leave`, which the nearest function that the hook knows catches.

Python cannot make another frame return. The hook therefore stands around the functions that harnesses call on a rank:
the test function (pytest, unittest, torch's classes), the function of `mp.spawn`, of a pool's task, of a process.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any


class Leave(BaseException):
    """Leaves the function whose door it names. A `BaseException`, so that no `except Exception` on the way stops it."""

    def __init__(self, door: object) -> None:
        super().__init__("dist_testing.audit: early return")
        self.door = door


class _Doors(threading.local):
    """The functions of this thread that can be left, the innermost last, each with its name."""

    def __init__(self) -> None:
        self.open: list[tuple[object, str]] = []


doors = _Doors()


@contextlib.contextmanager
def open_door(name: str) -> Iterator[object]:
    """Yield the token of a function that can be left; it runs in the block."""
    token = object()
    doors.open.append((token, name))
    try:
        yield token
    finally:
        doors.open = [door for door in doors.open if door[0] is not token]


def leavable(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `function`, and returns None if the rank leaves it early."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with open_door(name) as token:
            try:
                return function(*args, **kwargs)
            except Leave as leave:
                if leave.door is not token:
                    raise
                return None

    return call


def open_run(owner: Any, what: str) -> None:
    """Make the functions of `threading.Thread` or of `multiprocessing.Process` leavable."""
    owner.run = leavable(f"the function of the {what}", owner.run)


def open_pool(module: ModuleType) -> None:
    """Make the functions of a pool's tasks leavable."""
    for name in ("mapstar", "starmapstar"):
        whole = getattr(module, name)

        def call(args: tuple[Any, ...], _whole: Callable[..., Any] = whole) -> Any:
            return _whole((leavable("the function of the pool's task", args[0]), *args[1:]))

        # The name by which workers find it.
        setattr(module, name, functools.wraps(whole)(call))


def open_torch_spawn(module: ModuleType) -> None:
    """Make the functions of `torch.multiprocessing.spawn` leavable."""
    whole = module._wrap

    @functools.wraps(whole)
    def _wrap(fn: Callable[..., Any], *args: Any) -> Any:
        return whole(leavable("the function of mp.spawn", fn), *args)

    module._wrap = _wrap  # type: ignore[attr-defined]


def open_torch_classes(module: ModuleType) -> None:
    """Make the test methods of torch's own classes leavable on their ranks."""
    for class_name, method in (
        ("MultiProcessTestCase", "run_test"),
        ("MultiThreadedTestCase", "run_test_with_threaded_pg"),
    ):
        owner = getattr(module, class_name, None)
        if owner is not None and hasattr(owner, method):
            setattr(owner, method, _with_leavable_test(getattr(owner, method)))


def _with_leavable_test(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def run(self: Any, test_name: str, *args: Any, **kwargs: Any) -> Any:
        # On the object of this rank only.
        setattr(self, test_name, leavable("the test function", getattr(self, test_name)))
        return method(self, test_name, *args, **kwargs)

    return run


def is_script() -> bool:
    """Return whether this process runs a script in its main thread, which can end by `sys.exit`."""
    main = sys.modules.get("__main__")
    return threading.current_thread() is threading.main_thread() and bool(getattr(main, "__file__", None))
