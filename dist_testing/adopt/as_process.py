"""What a process of multiprocessing does before and after its function, for processes and ranks that are forks.

A fork has more than a fresh interpreter: what the test's process has registered for its own end, and what it has
changed in the suite's modules. It ends as multiprocessing ends a process: it waits for threads and children, and runs
finalisers and exit handlers.
"""

from __future__ import annotations

import _warnings
import gc
import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from multiprocessing import popen_fork, process, reduction, util
from multiprocessing.context import set_spawning_popen
from types import ModuleType
from typing import Any, NoReturn, TypeVar

import torch

from dist_testing.core.ground.error_text import summarise
from dist_testing.core.process.lifetime import become_subreaper, in_new_thread
from dist_testing.core.process.orphans import Orphans
from dist_testing.programs.main_module import end_as_main, forget_handlers

_Value = TypeVar("_Value")

# All of multiprocessing's own is private.
_process: Any = process
_util: Any = util

# The attribute of a process object with the descriptor of a file, which a fork has, too. There the process tells what
# its exit code does not show: lines that begin with one of three words.
TOLD = "_dist_testing_told"
RANK, EXITS, LEFT = "rank", "exits", "left"

# The folder in which the suite is, with a separator at its end; "" before pytest has told it.
_root = [""]


def set_root(folder: str) -> None:
    """Set the folder in which the suite is."""
    _root[0] = os.path.join(folder, "")


def _forget_test() -> None:
    """Leave out what pytest and the test's process have set for themselves: exit handlers, filters of warnings."""
    forget_handlers()
    # The interpreter's own list. pytest applies the filters of the suite to a copy of it.
    warnings.filters = _warnings.filters  # type: ignore[assignment]  # wrong in typeshed
    # The rule that Python has without a filter; the call makes Python forget what it knew of the other list.
    warnings.simplefilter("default", append=True)
    warnings.showwarning = _show_warning  # type: ignore[assignment]  # the same arguments


def _show_warning(*warning: Any) -> None:
    """Print a warning as Python does, where pytest would record it."""
    print(warnings.formatwarning(*warning[:4]), end="", file=sys.stderr)


def run_as_process(call: Callable[[], _Value]) -> _Value:
    """Call a function on a rank, and end as a process of multiprocessing does. An error ends the rank at once."""
    _forget_test()
    _process._children = set()
    _process.BaseProcess._after_fork()
    value = call()
    _util._exit_function()
    end_as_main()
    return value


def tell_end(one: Any, run: Callable[[], int]) -> int:
    """Run a process object in its process. A rank tells its number, `os._exit(0)`, and what processes it leaves."""
    told: int | None = vars(one).pop(TOLD, None)
    if told is None:
        return run()
    pid, exit_now = os.getpid(), os._exit
    c10d: Any = torch.distributed.distributed_c10d
    set_group = c10d._update_default_pg
    is_rank = False

    def tell(word: str, text: object = "") -> None:
        os.write(told, f"{word} {text}\n".encode())

    def become_rank(group: Any) -> None:
        nonlocal is_rank
        set_group(group)
        if group is not None and os.getpid() == pid:
            is_rank = True
            become_subreaper()
            tell(RANK, group.rank())

    def exit_early(status: int) -> NoReturn:
        if status == 0 and is_rank and os.getpid() == pid:
            tell(EXITS)
        exit_now(status)

    c10d._update_default_pg, os._exit = become_rank, exit_early
    try:
        return run()
    finally:
        os._exit = exit_now
        if is_rank:
            for command in Orphans().remove():
                tell(LEFT, command)


class SpawnedPopen(popen_fork.Popen):
    """Starts a process as the method "spawn" does, in a fork that has torch and the project imported.

    The process object travels by pickle, and the modules of the suite are imported anew.
    """

    def __init__(self, process_obj: Any) -> None:
        self._fds: list[int] = []
        super().__init__(process_obj)

    class DupFd:
        """A descriptor in a pickle, by the name that multiprocessing asks for."""

        def __init__(self, fd: int) -> None:
            self._fd = fd

        def detach(self) -> int:
            """Return the descriptor, which the caller then owns."""
            return self._fd

    def duplicate_for_child(self, fd: int) -> int:
        """Return a descriptor for an object of the fork. The object in this process has its own."""
        self._fds.append(os.dup(fd))
        return self._fds[-1]

    def _launch(self, process_obj: Any) -> None:
        launch: Any = super()._launch  # type: ignore[misc]  # not in typeshed
        content = io.BytesIO()
        try:
            set_spawning_popen(self)  # type: ignore[arg-type]  # their pickles ask it for copies
            try:
                reduction.dump(process_obj, content)
            finally:
                set_spawning_popen(None)
            in_new_thread(lambda: launch(_Sent(content.getvalue())))
        finally:
            for fd in self._fds:
                os.close(fd)


class _Sent:
    """A process object on its way to the process."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def _bootstrap(self, parent_sentinel: int) -> int:
        """Be the process, and return its exit code."""
        # What is garbage in the test's process may rely on threads that a fork does not have. A collection can crash.
        gc.freeze()
        _forget_test()
        try:
            one = self._read()
        except BaseException:
            # As an interpreter that ends so.
            traceback.print_exc()
            return 1

        def run() -> int:
            code: int = one._bootstrap(parent_sentinel=parent_sentinel)
            end_as_main()
            return code

        return tell_end(one, run)

    def _read(self) -> Any:
        current: Any = process.current_process()
        current._inheriting = True
        kept = _forget_suite()
        try:
            return reduction.ForkingPickler.loads(self._content)
        except Exception as error:
            # Some modules cannot be imported twice, such as those that register operators of torch.
            print(
                "dist_testing: the modules of the suite are those of the test's process, because their import in a new "
                f"process has failed: {summarise(error)}",
                file=sys.stderr,
            )
            sys.modules.update(kept)
            return reduction.ForkingPickler.loads(self._content)
        finally:
            del current._inheriting


def _forget_suite() -> dict[str, ModuleType]:
    """Have the modules of the suite imported anew: those below its folder with "test" in their path there."""
    kept = {}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None) or ""
        inner = path.removeprefix(_root[0])
        is_of_suite = inner != path and "test" in inner and "site-packages" not in inner
        # This library is no part of the suite, and the main program runs.
        if is_of_suite and name.partition(".")[0] not in ("dist_testing", "__main__"):
            kept[name] = sys.modules.pop(name)
    return kept
