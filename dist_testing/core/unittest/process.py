"""`MultiProcessTestCase` and its logic: each method runs on fresh rank processes."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import multiprocessing
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.outcomes import Kind, exit_name, verdict
from dist_testing.core.launch.isolation import FORK, SPAWN
from dist_testing.core.unittest.comparison import TensorComparisons
from dist_testing.core.unittest.exits import exit_code, forgiven, names_of
from dist_testing.core.unittest.handles import RankHandle
from dist_testing.core.unittest.plain import current_session
from dist_testing.core.unittest.unittest_messages import UnittestCase
from dist_testing.core.unittest.unittest_rank import RankPipe
from dist_testing.core.unittest.world_case import WorldCase, default_world_size

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True


class _RankProcess:
    """What `_spawn_processes` gives to an override of `_start_processes` in place of a process class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise UsageError(
            "_start_processes has made a process by itself.\n"
            "The engine makes the ranks; it would not watch a process that the class makes.\n"
            "Call super()._start_processes(proc) in its place; values reach the ranks in the environment or a file."
        )


class ProcessCase(WorldCase):
    """Runs each test method on every rank of a fresh world; ranks are processes.

    `setUp` and `tearDown` run in the runner, once per test; `setUpRank` and `tearDownRank` run on every rank, around
    the method. The ranks start when `setUp` calls `_spawn_processes`, or when the method begins. The library makes no
    process group: the test makes it, for example with a store on `self.file_name`.

    On a rank the class method `_run` makes the instance and calls its `run_test`. A class that needs something around
    its tests, such as a process group, overrides `_run`.

    Attributes:
        rank: This rank; `MAIN_PROCESS_RANK` (-1) in the runner.
        file_name: An empty file that the ranks share, for a rendezvous.
        processes: In the runner, a handle of each rank that has been started.
        skip_return_code_checks: Test methods whose ranks may end with any code or signal; an exception still fails.
        special_return_code_checks: Test method to the exit code that rank 0 must end with; other ranks may end with it.
    """

    _replaced = ("_event_listener",)

    class Event(enum.Enum):
        """Questions of the runner to a rank, by torch's names."""

        GET_TRACEBACK = 1

    def __init__(self, methodName: str = "runTest", method_name: str | None = None) -> None:
        super().__init__(methodName, method_name)
        self.file_name = ""
        self.processes: list[RankHandle] = []
        self.skip_return_code_checks: list[Callable[..., Any]] = []
        self.special_return_code_checks: dict[Callable[..., Any], int] = {}
        self._result: CaseResult | None = None
        self._is_judged = False

    @property
    def world_size(self) -> int:
        """Ranks of each test; a class sets an attribute or overrides this. Default: the target's size, else 4."""
        return default_world_size()

    @property
    def destroy_pg_upon_exit(self) -> bool:
        """Whether the library destroys a default group that the test leaves; default: True."""
        return True

    @property
    def pid_to_pipe(self) -> Mapping[int, RankHandle]:
        """In the runner, while a test runs: process id of each rank to an object that asks it for its stacks."""
        handles = [] if self._running is None else self.processes
        return {handle.pid: handle for handle in handles if handle.pid is not None}

    def setUp(self) -> None:
        """Prepare the test, in the runner, before the ranks are started: make `file_name`."""
        super().setUp()
        self._make_file()

    def tearDown(self) -> None:
        """Clean up after the test, in the runner, when the ranks have ended: forget them."""
        super().tearDown()
        self.processes = []

    def _spawn_processes(self) -> None:
        """Start the ranks, once per test. They inherit the environment and the working directory of this moment."""
        self._start_processes(_RankProcess)

    def _fork_processes(self) -> None:
        """Start the ranks as `_spawn_processes` does, but always by fork, whatever the class or the target says."""
        self._start_processes(multiprocessing.get_context("fork").Process)

    def _start_processes(self, proc: object) -> None:
        """Start the ranks as `_spawn_processes` does, by the start method of a process class of `multiprocessing`.

        `_spawn_processes` and `_fork_processes` call it, so an override runs just before the ranks start. `proc` is
        such a class, as `multiprocessing.get_context("spawn").Process`: the engine could not call another callable.
        """
        if proc is _RankProcess:
            self._ask(self.isolation)
            return
        method = getattr(proc, "_start_method", "")
        if method not in ("spawn", "fork", "forkserver"):
            raise UsageError(
                f"{self.id()}: _start_processes({proc!r}): not a process class of multiprocessing.\n"
                "The engine makes the ranks, either by spawn or by fork; it cannot call a function for that.\n"
                "Pass get_context(...).Process; pass values to the ranks in the environment or a file."
            )
        self._ask(SPAWN.name if method == "spawn" else FORK.name)

    def _ask(self, isolation: object) -> None:
        if self.processes:
            raise UsageError(
                f"{self.id()}: _spawn_processes was called twice.\n"
                "Each test has one world.\n"
                "Call it once, at the end of setUp, or not at all: then the ranks start when the method begins."
            )
        self._result = None
        self._make_file()
        running = self._ask_for_ranks(self.world_size, isolation, file_name=self.file_name)
        if type(self)._check_return_codes is not ProcessCase._check_return_codes:
            running.world.supervisor.ignore_exits()
        self.processes = [RankHandle(running, rank) for rank in range(running.case.world_size)]

    def _join(self, fn: Callable[[], Any]) -> None:
        self._let_ranks_end(fn)
        judge = self._check_return_codes

        @functools.wraps(judge)
        def noting(*args: Any, **kwargs: Any) -> None:
            self._is_judged = True
            judge(*args, **kwargs)

        # An override of `_join_processes` ends by this call, also in a class that overrides both.
        vars(self)["_check_return_codes"] = noting
        self._join_processes(fn)
        if not self._is_judged:
            raise self._without_verdict()
        self._end_ranks(fn)

    def _let_ranks_end(self, fn: Any) -> None:
        """Let the ranks go on after the end of another one, if the class takes any end of a rank, or a special one."""
        is_forgiving = any(
            name in self.skip_return_code_checks or name in self.special_return_code_checks for name in self._names(fn)
        )
        if is_forgiving and self._running is not None:
            self._running.world.supervisor.ignore_exits()

    def _names(self, fn: Any) -> tuple[Callable[..., Any], ...]:
        """Return all forms in which a class may list the test: also the one on this instance, which wraps `fn`."""
        return (getattr(self, self._testMethodName), *names_of(fn))

    def _join_processes(self, fn: Callable[[], Any]) -> None:
        """Wait for the ranks, in the runner, and judge the test, whose method is `fn`."""
        if not self.processes:
            self._spawn_processes()
        result = self._end_ranks(fn)
        if any(outcome.kind is Kind.HUNG for outcome in result.outcomes):
            try:
                self._get_timedout_process_traceback()
            except Exception:
                # The report of the hang says more than an error in a class that asks ranks for their stacks.
                traceback.print_exc()
        # Older releases of torch passed only the time, and classes from then override the method with one argument.
        kinds = [one.kind for one in inspect.signature(self._check_return_codes).parameters.values()]
        if len(kinds) != 1 or kinds == [inspect.Parameter.VAR_POSITIONAL]:
            self._check_return_codes(fn, result.duration_s)
        elif any(name in self.skip_return_code_checks for name in self._names(fn)):
            # Those releases called only one of the two.
            self._check_no_test_errors(result.duration_s)
        else:
            self._check_return_codes(result.duration_s)
        self._is_judged = True

    def _end_ranks(self, fn: Any) -> CaseResult:
        """Wait for the ranks of the method `fn`, if they have not been waited for, and return their result."""
        if self._result is not None:
            return self._result
        if self._running is None:
            raise UsageError(
                f"{self.id()}: no ranks were started, so the test has not run.\n"
                "The class overrides _spawn_processes, _start_processes or _join_processes, and starts no ranks.\n"
                "Call the method of the base class; or override join_or_run, if the test is to run without ranks."
            )
        self._let_ranks_end(fn)
        handles, self.processes = self.processes, []
        self._result = result = self._wait_for_ranks()
        for handle, outcome in zip(handles, result.outcomes, strict=True):
            handle.settle(outcome)
        self.processes = handles
        return result

    def _check_return_codes(self, fn: Any, elapsed_time: float | None = None) -> None:
        """Judge the test by how the ranks have ended. An override finds them in `self.processes`; all have ended.

        A class that overrides `_join_processes` calls this at the end of it. Then it also waits for the ranks. `fn` is
        the test method; or the duration in seconds, as in older releases of torch, and then there is no `elapsed_time`.
        """
        method = fn if elapsed_time is not None else getattr(self, self._testMethodName)
        result = self._end_ranks(method)
        names = self._names(method)
        codes = self.special_return_code_checks
        special = next((int(codes[name]) for name in names if name in codes), 0)
        if any(name in self.skip_return_code_checks for name in names):
            self._check_no_test_errors(result.duration_s)
        elif special:
            self._judge_forgiving(result, special)
            if (first := exit_code(result.outcomes[0])) != special:
                self.fail(
                    f"{self.id()}: rank 0 ended by {exit_name(first)}; expected {exit_name(special)}.\n"
                    "special_return_code_checks of the class requires it."
                )
        else:
            self._judge(result)

    def _check_no_test_errors(self, elapsed_time: float) -> None:
        """Fail if a rank raised or did not end; any exit code is a pass. For classes that check codes themselves."""
        if self._result is not None:
            self._judge_forgiving(self._result, None)

    def _judge_forgiving(self, result: CaseResult, allowed: int | None) -> None:
        """Judge the test as if the ranks that ended by this code had passed; None for any code or signal."""
        outcomes = tuple(forgiven(outcome, allowed) for outcome in result.outcomes)
        promised = bool(current_session().engine.spec.promises(result.case.world_size))
        judged = verdict(outcomes, promised=promised, leaked=result.leaked)
        self._judge(dataclasses.replace(result, verdict=judged, outcomes=outcomes))

    def _get_timedout_process_traceback(self) -> None:
        """Print, in the runner, the stacks of the ranks that still run the test. The test goes on.

        Also called after a test in which a rank hung, for classes that override it. By then all ranks have ended, and
        the report has their stacks.
        """
        if self._running is not None:
            for rank, stacks in self._running.world.supervisor.stacks_now().items():
                print(f"stacks of rank {rank}:\n{stacks}", file=sys.stderr)

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, parent_pipe: RankPipe, **kwargs: Any) -> None:
        """Make the instance and run its test, on a rank; `kwargs` are settings of other libraries' classes."""
        self = cls(test_name)
        self.rank = rank
        self.file_name = file_name
        self.run_test(test_name, parent_pipe)

    def run_test(self, test_name: str, parent_pipe: RankPipe) -> None:
        """Run the method between `setUpRank` and `tearDownRank`, on a rank, with freshly seeded random generators.

        Raises:
            SystemExit: If the test did not pass, so that the code after it does not run.
            UsageError: If `_run` has not set the instance's rank.
        """
        if self.rank == self.MAIN_PROCESS_RANK:
            raise UsageError(
                f"{self.id()}: run_test was called on an instance that has no rank.\n"
                "The class overrides _run, which makes the instance.\n"
                "Set self.rank = rank there, before run_test is called."
            )
        parent_pipe.run(self, test_name)

    @classmethod
    def _run_on_rank(cls, rank: int, case: UnittestCase, pipe: RankPipe) -> None:
        # torch's classes hand `fake_pg` on, and those of FSDP ask for it.
        cls._run(rank, case.method, case.file_name, pipe, fake_pg=case.fake_pg)
        # A class may run its tests itself. A class that uses this `run_test` must call it.
        if cls.run_test is ProcessCase.run_test and not pipe.has_run:
            raise UsageError(
                f"{cls.__qualname__}._run has returned, and {case.method} has not run.\n"
                "The class overrides _run, and does not call run_test.\n"
                "Call self.run_test(test_name, parent_pipe) at its end, or leave by sys.exit with the code of a skip."
            )

    def _make_file(self) -> None:
        if self.file_name:
            return
        # In the run's folder, which is removed even if this process is killed.
        _, run = current_session().engine.prepare()
        descriptor, self.file_name = tempfile.mkstemp(prefix="rendezvous-", dir=run.path)
        os.close(descriptor)
        # The last user of a FileStore removes its file.
        self.addCleanup(Path(self.file_name).unlink, missing_ok=True)


class MultiProcessTestCase(ProcessCase, TensorComparisons):
    """Runs each test on fresh rank processes. See `ProcessCase` for the rules; `assertEqual` compares tensors."""
