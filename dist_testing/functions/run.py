"""The function `dist_testing.run`: calls a function on every rank of a fresh world, from any program."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import unittest
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from dist_testing.core.engine.needs import Lack, missing_need
from dist_testing.core.engine.rank_logs import print_output
from dist_testing.core.ground.add_ons import read_settings
from dist_testing.core.ground.backends import backend_named, default_backend
from dist_testing.core.ground.budget import MAX_TIMEOUT_S, is_timeout
from dist_testing.core.ground.error_text import name_of
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.spec import DEFAULT_WORLD_SIZE, Spec, check_world_size
from dist_testing.core.launch.clean import unshareable_reasons
from dist_testing.core.launch.isolation import FORK, Reuse, default_isolation, isolation_named, isolation_names
from dist_testing.core.session.session import Session, current_session
from dist_testing.functions.function_world import CallWorld, RunFailedError
from dist_testing.threaded.members import current_member

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

_Value = TypeVar("_Value")
LIMIT = f"a number of seconds above 0, up to {MAX_TIMEOUT_S}"
_EXAMPLE = "Write dist_testing.run(train, world_size=4, args=(0.1,)), for example."


def run(
    fn: Callable[..., _Value],
    world_size: int = DEFAULT_WORLD_SIZE,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    backend: str | None = None,
    *,
    nodes: int = 1,
    timeout: float | None = None,
    isolation: str | None = None,
) -> list[_Value]:
    """Call `fn(*args, **kwargs)` on every rank of a fresh world, and return what each rank has returned.

    It works in scripts, notebooks, tests and threads. Each rank has a default process group, and the variables that
    torchrun sets. Ranks are forked from this process as it is at the call, so `fn` may be a lambda, a closure or a
    function of a notebook's cell, and sees the values that this process has now. A lock that another thread holds at
    that moment stays locked on the ranks. What the ranks print appears with the rank before each line.

    Args:
        fn: The function. It finds its rank with `torch.distributed.get_rank()`.
        world_size: Number of ranks.
        args: Its arguments, the same on all ranks. They are not copied before the fork.
        kwargs: Its keyword arguments; None for none.
        backend: Name of a declared backend; None for that of the target or the command line in a test, else "gloo".
        nodes: Number of simulated nodes that the ranks are spread over.
        timeout: Limit in seconds; None for that of the target or the command line in a test, else for that of the
            backend, which is 300 for gloo.
        isolation: "fork"; "spawn" for a fresh interpreter for each rank, which finds `fn` by its name and gets the
            arguments by pickle; "thread" for ranks that are threads of one process, with backend "threaded". None for
            the one that fits the backend.

    Returns:
        One value for each rank, by rank. Values come back as data, never by unpickling: tensors (on the CPU), numbers,
        strings, bytes, None, and lists, tuples, dicts and sets of them.

    Raises:
        RunFailedError: If a rank fails; it names the culprit, its phase, its traceback and the victims.
        unittest.SkipTest: If all ranks skip for the same reason, or in a test if the machine lacks GPUs.
        UsageError: If an argument is impossible, this process is a rank, or it has state that ranks cannot share.
    """
    # pytest leaves out the frame.
    __tracebackhide__ = True
    name = name_of(fn)
    subject = f"run({name})"
    is_named = kwargs is None or (isinstance(kwargs, Mapping) and all(isinstance(key, str) for key in kwargs))
    check_arguments(
        subject,
        "fn, world_size, args, kwargs, backend, nodes, timeout and isolation",
        _EXAMPLE,
        ("fn", fn, "a function", callable(fn)),
        ("args", args, "a tuple", isinstance(args, tuple)),
        ("kwargs", kwargs, "a dict with names as keys", is_named),
        ("backend", backend, 'a name, such as "gloo"', isinstance(backend, str | None)),
        ("timeout", timeout, LIMIT, timeout is None or is_timeout(timeout)),
        ("isolation", isolation, f"one of {', '.join(isolation_names())}", isinstance(isolation, str | None)),
    )
    check_world_size(subject, world_size, _EXAMPLE)
    settings = read_settings(subject, {} if type(nodes) is int and nodes == 1 else {"nodes": nodes})
    check_no_rank(subject)
    session = current_session()
    spec = call_spec(subject, session, world_size, backend, isolation)
    way = isolation_named(spec.isolation)
    if not way.fresh_interpreter and (reasons := unshareable_reasons()):
        raise UsageError(
            f"{subject}: ranks cannot be forked from this process: {'; '.join(reasons)}.\n"
            "A forked process can use neither the GPU contexts nor the process groups of its parent.\n"
            'Call run() before; in a notebook, restart the kernel. Or use isolation="spawn" and a function of a module.'
        )
    _check_call(subject, fn, args, kwargs or {})
    _check_hardware(subject, session, spec, world_size, settings)
    call = functools.partial(fn, *args, **(kwargs or {}))
    timeout_s = None if timeout is None else float(timeout)
    with CallWorld(call, name, world_size, spec, settings=settings, timeout_s=timeout_s, show=print_output) as world:
        result = world.run()
        world.judge(result, RunFailedError)
        return world.values(result)


def check_arguments(subject: str, names: str, example: str, *rows: tuple[str, object, str, bool]) -> None:
    """Refuse a wrong argument. A row has its name, its value, what is expected, and whether the value is that."""
    for name, value, expected, is_right in rows:
        if not is_right:
            raise UsageError(
                f"{subject} with {name} = {value!r:.200}; expected {expected}.\nIts arguments are {names}.\n{example}"
            )


def _check_call(subject: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse a call that the function does not take, before a rank starts."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        # A function of an extension may have none.
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise UsageError(
            f"{subject}: the call does not fit the parameters {signature}: {error}.\n"
            "The function gets args and kwargs. Unlike torch.multiprocessing.spawn, run() passes no rank before them.\n"
            "Ask for the rank by torch.distributed.get_rank(), or pass what is missing by args or kwargs."
        ) from None


def check_no_rank(subject: str) -> None:
    """Refuse a world inside a rank: this process, or this thread."""
    member = current_member()
    if (rank := os.environ.get("RANK") if member is None else member.rank) is not None:
        raise UsageError(
            f"{subject} was called on rank {rank} of a world.\n"
            'Each rank would make a world of its own. With isolation "spawn", each rank imports the script again, and '
            "repeats each call that is not below `if __name__ == '__main__':`.\n"
            "Call it where no world exists yet; if no launcher has started this process, unset RANK."
        )


def call_spec(subject: str, session: Session | None, size: int, backend: str | None, isolation: str | None) -> Spec:
    """Return what the call asks for: what it says itself, then what the target or the command line says.

    A UsageError refuses a name that does not exist, and a world that is larger than the target declares.
    """
    if session is not None:
        session.check_declared(subject, size)
    if backend is not None:
        chosen = backend_named(backend)
    else:
        chosen = session.engine.spec.backend if session is not None else default_backend()
    way = default_isolation(chosen) if isolation is None else isolation_named(isolation)
    if way.reuse is Reuse.RANKS:
        raise UsageError(
            f'{subject} with isolation = "{way.name}".\n'
            "A worker pool keeps its ranks for the next test, and the ranks of a call end with it.\n"
            f'Use isolation="{FORK.name}", which is the default.'
        )
    if session is None:
        return Spec("", chosen, (size,), way.name)
    return dataclasses.replace(session.engine.spec, backend=chosen, isolation=way.name)


def _check_hardware(subject: str, session: Session | None, spec: Spec, size: int, settings: Mapping[str, Any]) -> None:
    """Refuse a world that the machine cannot make: a test skips, unless the configuration promises the hardware."""
    if not (missing := missing_need(spec, size, settings)):
        return
    if session is None:
        way_out = missing.way_out if isinstance(missing, Lack) else ""
        raise UsageError(
            f"{subject}: the world cannot run on this machine: {missing}\n"
            f"It asks for {size} rank(s) of backend {spec.backend.name} on {settings.get('nodes', 1)} node(s).\n"
            f"{way_out or 'Use a machine that has what is missing, or another backend.'}"
        )
    if (refused := session.promise_error(subject, missing, size)) is not None:
        raise refused
    raise unittest.SkipTest(missing)
