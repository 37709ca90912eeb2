"""The world of one call: an engine of its own, whose ranks are forked from this process as it is at the call."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import pickle
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.running_case import RunningCase
from dist_testing.core.events.event import RankOutput
from dist_testing.core.ground.budget import Budget
from dist_testing.core.ground.case import Case, CaseBody, CaseFailedError, CaseResult
from dist_testing.core.ground.error_text import summarise
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.spec import Spec
from dist_testing.core.launch.isolation import FORK, Reuse, isolation_named
from dist_testing.core.process.launcher_messages import Loader
from dist_testing.core.session.session import Session, current_session
from dist_testing.core.unittest.plain import main_module
from dist_testing.functions.function_rank import CALL_FILE, CallRankContext, read_value

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

# A process starts one world at a time: a fork of one call must not inherit the files of another that is being made.
_one_call = threading.Lock()
# The thread that holds it does not exist on the ranks, where the function may make a world of its own.
os.register_at_fork(after_in_child=_one_call._at_fork_reinit)  # type: ignore[attr-defined]  # not in typeshed


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
        with _one_call, self._pause():
            return self.engine.run(self._sent_case())

    def start(self) -> RunningCase:
        """Start the ranks, and return without waiting for them."""
        with _one_call:
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
                raise RunFailedError(
                    f"run({result.case.name}): the value of rank {rank} cannot be read: {summarise(error)}\n"
                    "The rank could read it. Its type needs something that only ranks have, such as a process group; "
                    "or the function has changed the file.\n"
                    "Return tensors, numbers, strings and containers of them.",
                    result,
                ) from None
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
