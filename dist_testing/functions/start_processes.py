"""The function `start_processes`: calls a function of a test on every rank of a fresh world."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dist_testing.core.ground.budget import is_timeout
from dist_testing.core.ground.error_text import name_of, summarise
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.spec import check_world_size
from dist_testing.core.launch.isolation import FORK, SPAWN, Isolation, Reuse, isolation_named
from dist_testing.core.unittest.plain import current_session
from dist_testing.core.unittest.process import ProcessCase
from dist_testing.core.unittest.world_case import without_effect
from dist_testing.functions.run import LIMIT, check_arguments, check_no_rank, one_call

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

# torch's names of start methods, to the isolation that makes ranks so; None for the target's or the command line's.
_METHODS = {None: "", "fork": FORK.name, "forkserver": FORK.name, "spawn": SPAWN.name}
_EXAMPLE = "Write start_processes(check, args=(3,), nprocs=2), for example."


def start_processes(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    start_method: str | None = None,
    *,
    timeout: float | None = None,
) -> None:
    """Call `fn(rank, *args)` on every rank of a fresh world, and judge the world as a test of its own.

    It takes the place of `torch.multiprocessing.spawn` in a plain test: any end of a rank but a return fails the test
    at once, the ranks have a limit and a report, and nothing outlives them. `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and
    `MASTER_PORT` are set on the ranks; the library makes no process group.

    Args:
        fn: A function of a module: the ranks find it by its name. What it returns is dropped.
        args: Its arguments after the rank. They travel by pickle.
        nprocs: Ranks in the world.
        join: Must be True: the call returns when all ranks have ended.
        start_method: "fork", "forkserver" or "spawn"; None for the target's or the command line's isolation if that is
            one of them, else fork.
        timeout: Limit in seconds; None for the target's or the command line's.

    Raises:
        CaseFailedError: If a rank fails; its text is the report.
        unittest.SkipTest: If all ranks skip for the same reason, by an exception or an exit code of `TEST_SKIPS`.
        UsageError: If an argument is impossible, or this process is a rank.
    """
    # pytest shows the line of the test, and not this function.
    __tracebackhide__ = True
    name = name_of(fn)
    check_world_size(f"start_processes({name})", nprocs, _EXAMPLE)
    check_arguments(
        f"start_processes({name})",
        "fn, args, nprocs, join, start_method and timeout",
        _EXAMPLE,
        ("fn", fn, "a function", callable(fn)),
        ("fn", fn, f"a plain function, not {without_effect(fn)}", not without_effect(fn)),
        ("args", args, "a tuple", isinstance(args, tuple)),
        ("join", join, "True: the call returns when all ranks have ended", join is True),
        ("start_method", start_method, "one of fork, forkserver, spawn", start_method in _METHODS),
        ("timeout", timeout, LIMIT, timeout is None or is_timeout(timeout)),
    )
    try:
        call = pickle.dumps((fn, args))
    except Exception as error:
        raise UsageError(
            f"start_processes({name}): {_first_unsendable(fn, args)} cannot be sent to the ranks: {summarise(error)}\n"
            "The ranks are other processes. They find a function by the name that it has in its module.\n"
            "Define it at the level of a module, and pass values by args."
        ) from None
    check_no_rank(f"start_processes({name})")
    with one_call, current_session().pause_limit():
        _FunctionCase(name, call, nprocs, _METHODS[start_method], timeout).debug()


def _first_unsendable(fn: object, args: tuple[Any, ...]) -> str:
    """Return such as "args[1] = <function ...>"."""
    for what, value in (("fn", fn), *((f"args[{number}]", value) for number, value in enumerate(args))):
        try:
            pickle.dumps(value)
        except Exception:
            return f"{what} = {value!r}"
    return "the call"


class _FunctionCase(ProcessCase):
    """The world of one call."""

    _limit_switch = "the call's timeout"
    _with_store = True

    def __init__(
        self,
        name: str = "runTest",
        call: bytes = b"",
        size: int = 1,
        isolation: str = "",
        timeout: float | None = None,
    ) -> None:
        super().__init__("runTest")
        self._name = name
        self._call = call
        self._size = size
        self.isolation = isolation  # type: ignore[misc]  # each call has its own
        self.case_timeout_s = timeout  # type: ignore[misc]

    @property
    def world_size(self) -> int:
        """Ranks of the call."""
        return self._size

    def id(self) -> str:
        """Return the name of the function, for reports."""
        return self._name

    def _checked_isolation(self, name: object) -> Isolation:
        wanted = isolation_named(str(name) or current_session().engine.spec.isolation)
        # A call is a world of its own, also where tests share ranks.
        return FORK if wanted.in_process or wanted.reuse is not Reuse.NOTHING else wanted

    def setUp(self) -> None:
        """Write the call for the ranks."""
        super().setUp()
        Path(self.file_name).write_bytes(self._call)

    def runTest(self) -> None:
        """Make the call, on a rank."""
        fn, args = pickle.loads(Path(self.file_name).read_bytes())
        fn(int(os.environ["RANK"]), *args)
