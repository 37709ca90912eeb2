"""The function `dist_testing.run`: calls a function on every rank of a fresh world, from any program.

The world of a call has an engine of its own, whose ranks are forked from this process as it is at the call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import os
import pickle
import sys
import tempfile
import threading
import unittest
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.needs import Lack, missing_need
from dist_testing.core.engine.rank_logs import print_output
from dist_testing.core.engine.running_case import RunningCase
from dist_testing.core.events.event import RankOutput
from dist_testing.core.ground.add_ons import read_settings
from dist_testing.core.ground.backends import backend_named, default_backend
from dist_testing.core.ground.budget import MAX_TIMEOUT_S, Budget, is_timeout
from dist_testing.core.ground.case import Case, CaseBody, CaseFailedError, CaseResult
from dist_testing.core.ground.error_text import name_of, summarise
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.outcomes import Cause, Status, Verdict
from dist_testing.core.ground.spec import DEFAULT_WORLD_SIZE, Spec, check_world_size
from dist_testing.core.launch.clean import unshareable_reasons
from dist_testing.core.launch.isolation import FORK, Reuse, default_isolation, isolation_named, isolation_names
from dist_testing.core.process.launcher_messages import Loader
from dist_testing.core.session.session import Session, current_session
from dist_testing.core.unittest.plain import main_module
from dist_testing.functions.function_rank import CALL_FILE, CallRankContext, read_value
from dist_testing.threaded.members import current_member

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

_Value = TypeVar("_Value")
LIMIT = f"a number of seconds above 0, up to {MAX_TIMEOUT_S}"
_EXAMPLE = "Write dist_testing.run(train, world_size=4, args=(0.1,)), for example."
# A process makes one call at a time: a fork of one call must inherit neither the files of another that is being made,
# nor the lock of a module that another imports, for example to read its values.
one_call = threading.RLock()
# The thread that holds it does not exist on the ranks, where the function may make a world of its own.
os.register_at_fork(after_in_child=one_call._at_fork_reinit)  # type: ignore[attr-defined]  # not in typeshed


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
    with one_call:
        session = current_session()
        spec = call_spec(subject, session, world_size, backend, isolation)
        way = isolation_named(spec.isolation)
        if not way.fresh_interpreter and (reasons := unshareable_reasons()):
            raise UsageError(
                f"{subject}: ranks cannot be forked from this process: {'; '.join(reasons)}.\n"
                "A forked process can use neither the GPU contexts nor the process groups of its parent.\n"
                "Call run() before; in a notebook, restart the kernel. "
                'Or use isolation="spawn" and a function of a module.'
            )
        _check_call(subject, fn, args, kwargs or {})
        _check_hardware(subject, session, spec, world_size, settings)
        call = functools.partial(fn, *args, **(kwargs or {}))
        timeout_s = None if timeout is None else float(timeout)
        with CallWorld(
            call, name, world_size, spec, settings=settings, timeout_s=timeout_s, show=print_output
        ) as world:
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


class RunFailedError(CaseFailedError, RuntimeError):
    """A function that `dist_testing.run` called failed on its ranks; the text is the whole report.

    Attributes:
        result: The result that the engine found.
    """

    @property
    def rank(self) -> int | None:
        """The culprit: the rank that failed first; None if no single rank is to blame."""
        return self.result.verdict.culprit

    @property
    def phase(self) -> str:
        """What the culprit was doing: "start", "import", "init", "call" or "destroy"; "" without a culprit."""
        return "" if self.rank is None else self.result.outcomes[self.rank].phase

    @property
    def traceback(self) -> str:
        """The traceback or the stacks of the culprit; "" if it left none, such as after a signal."""
        return "" if self.rank is None else self.result.outcomes[self.rank].text

    @property
    def victims(self) -> tuple[int, ...]:
        """The ranks that failed only because the culprit did."""
        return tuple(self.result.verdict.victims)


class CallWorld(contextlib.AbstractContextManager["CallWorld"]):
    """The ranks of one call. Use it as a context manager; its end removes everything that is left."""

    def __init__(
        self,
        call: Callable[[], Any],
        name: str,
        size: int,
        spec: Spec,
        *,
        settings: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        init: bool = True,
        with_store: bool = True,
        show: Callable[[RankOutput], object],
    ) -> None:
        """Describe the world, whose ranks call `call()`. It starts no process yet.

        `name` is that of the function, for reports; `settings`, `init` and `with_store` are those of `Case`; `show`
        takes each line that a rank prints. Without `timeout_s` the limit is that of the session, else of the backend.
        """
        way = isolation_named(spec.isolation)
        session = current_session()
        self._pause = session.pause_limit if session is not None else contextlib.nullcontext
        self._is_fresh = way.fresh_interpreter
        self._call = call
        self.engine = Engine(
            spec,
            session.engine.budget if session is not None else Budget(),
            CallRankContext(None if self._is_fresh else call),
            Loader(CallRankContext.__module__, main_module()),
            keeps_state=not self._is_fresh,
        )
        self.engine.events.subscribe(show, RankOutput, name="the ranks' output")
        limit_s = session.timeout_s if session is not None else float(spec.backend.timeout_s)
        self._session = Session(self.engine, limit_s)
        if session is not None:
            self._session.reports = session.reports
            self.engine.cases_after = session.engine.cases_after
        self._folder = ""
        self._case = Case(
            name=name,
            world_size=size,
            body=CaseBody("call"),
            timeout_s=limit_s if timeout_s is None else timeout_s,
            isolation=way.name,
            # Threads of one process: the engine asks for a name of what they share.
            pool=name if way.reuse is Reuse.PROCESS else "",
            init=init,
            with_store=with_store,
            settings=settings or {},
            limit_switch="the call's timeout",
        )

    def __exit__(self, *_: object) -> None:
        self.engine.close()

    def run(self) -> CaseResult:
        """Run the call to its end on all ranks. A second thread that calls it waits."""
        with one_call, self._pause():
            return self.engine.run(self._sent_case())

    def start(self) -> RunningCase:
        """Start the ranks, and return without waiting for them."""
        with one_call:
            return self.engine.start(self._sent_case())

    def finish(self, running: RunningCase) -> CaseResult:
        """Wait for the end of what `start` has started."""
        with self._pause():
            return self.engine.finish(running)

    def judge(self, result: CaseResult, error: type[CaseFailedError]) -> None:
        """Raise the error, or `unittest.SkipTest`, unless all ranks have passed."""
        __tracebackhide__ = True
        self._session.judge(result, error)

    def values(self, result: CaseResult) -> list[Any]:
        """Return what the ranks have returned, by rank."""
        values = []
        for rank in range(result.case.world_size):
            try:
                values.append(read_value(self._folder, rank))
            except Exception as error:
                why = f"the value of rank {rank} cannot be read: {summarise(error)}"
                notes = (
                    "The rank could read it. Its type needs something that only ranks have, such as a process group; "
                    "or the function has changed the file.",
                    "Return tensors, numbers, strings and containers of them.",
                )
                found = Verdict(Status.FAILED, Cause.FAILURE, why)
                self.judge(dataclasses.replace(result, verdict=found, notes=(*notes, *result.notes)), RunFailedError)
        return values

    def _sent_case(self) -> Case:
        name = self._case.name
        self._folder = tempfile.mkdtemp(prefix="call-", dir=self.engine.prepare()[1].path)
        if self._is_fresh:
            _send(self._call, name, self._folder)
        body = CaseBody("call", json.dumps({"name": name, "folder": self._folder}))
        return dataclasses.replace(self._case, body=body)


def _send(call: Callable[[], Any], name: str, folder: str) -> None:
    """Write the call for fresh interpreters; refuse one that cannot travel."""
    function = call.func if isinstance(call, functools.partial) else call
    if getattr(function, "__module__", "") == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
        why = "its module is this interactive session, which has no file"
    else:
        try:
            Path(folder, CALL_FILE).write_bytes(pickle.dumps(call))
            return
        except Exception as error:
            why = summarise(error)
    raise UsageError(
        f'run({name}, isolation="spawn"): the call cannot be sent to the ranks: {why}\n'
        "Each rank is a fresh interpreter. It finds the function by the name that it has in its module, and gets the "
        "arguments by pickle.\n"
        f'Define the function at the level of a module, or use isolation="{FORK.name}", which needs neither.'
    )
