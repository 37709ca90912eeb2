"""The common base of the test classes whose methods run on the ranks of a world.

In the runner: setUp, start the ranks, wait for them (in place of the method), verdict, tearDown.
On each rank: setUpRank, the method, tearDownRank, cleanups.
"""

from __future__ import annotations

import functools
import inspect
import os
import types
import unittest
import warnings
from collections import ChainMap
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from dist_testing.core.engine.needs import missing_need
from dist_testing.core.engine.running_case import RunningCase
from dist_testing.core.engine.running_world import check_world_size
from dist_testing.core.ground.add_ons import add_ons, read_settings
from dist_testing.core.ground.budget import MAX_TIMEOUT_S, is_timeout
from dist_testing.core.ground.case import RUNS_ON_RANKS, SETTINGS, Case, CaseBody, CaseFailedError, CaseResult
from dist_testing.core.ground.errors import DistTestingError, UsageError
from dist_testing.core.ground.skips import unmet_requirement
from dist_testing.core.ground.spec import number_in
from dist_testing.core.launch.isolation import Isolation, Reuse, isolation_named, isolation_names
from dist_testing.core.rank.bootstrap import FAILED_EXIT_CODE
from dist_testing.core.session.session import warnings_of
from dist_testing.core.unittest.exits import declared_exits
from dist_testing.core.unittest.plain import current_session
from dist_testing.core.unittest.unittest_messages import (
    FRONT_END,
    UNITTEST_CASES,
    ClassName,
    UnittestCase,
    record_values,
    write_values,
)
from dist_testing.core.unittest.unittest_rank import RankPipe

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True
# Attributes of an instance that cannot be pickled. Two are unittest's, and three replace methods.
_OF_THE_RUN = ("_check_return_codes", "_cleanups", "_outcome", "_result", "_running", "processes", "setUp", "tearDown")


class WorldCase(unittest.TestCase):
    """Base of the test classes whose methods run on the ranks of a world. Not for direct use.

    Attributes:
        isolation: How the ranks are made: "fork", "spawn" or "pool"; "" for the choice of the target or command line.
        case_timeout_s: Limit of each test in seconds; None for the limit of the target or command line.
        strict_collectives: Whether a test fails if its ranks pass but make different collective calls; None for the
            choice of the command line.
        exit_0_passes: Whether `sys.exit(0)` in a test is a pass of that rank. With False the rank has ended too early.
    """

    isolation: ClassVar[str] = ""
    case_timeout_s: ClassVar[float | None] = None
    strict_collectives: ClassVar[bool | None] = None
    exit_0_passes: ClassVar[bool] = False

    # `Case.limit_switch`.
    _limit_switch: ClassVar[str] = "case_timeout_s of the class (under pytest also --dist-timeout)"

    # Whether the library serves a store for the world; torch's classes leave that to the test.
    _with_store: ClassVar[bool] = False
    # Members of torch's class whose work the engine does. It would not call them in a class that has them.
    _replaced: ClassVar[tuple[str, ...]] = ()

    MAIN_PROCESS_RANK: ClassVar[int] = -1
    TEST_ERROR_EXIT_CODE: ClassVar[int] = FAILED_EXIT_CODE

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        record_values(cls)

    def __init__(self, methodName: str = "runTest", method_name: str | None = None) -> None:
        # The second name is torch's. Classes pass both on, in either order; one then has the default value.
        name = methodName if method_name in (None, "runTest") else method_name
        super().__init__(name)
        self.rank = self.MAIN_PROCESS_RANK
        self._running: RunningCase | None = None
        self._shows_locals = False
        # As unittest allows for "runTest", an instance without that method serves as a namespace only.
        if (method := getattr(self, name, None)) is not None:
            setattr(self, name, self.join_or_run(method))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, as when a test passes a method to another process: without its run."""
        kept = {name: value for name, value in vars(self).items() if name not in (*_OF_THE_RUN, self._testMethodName)}
        return {**kept, "_cleanups": [], "_outcome": None, "_running": None}

    @property
    def is_master(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @classmethod
    def tearDownClass(cls) -> None:
        """End the ranks of the class's worker pool, in the runner.

        Raises:
            AssertionError: If they did not end without errors.
        """
        super().tearDownClass()
        if trouble := cls._let_ranks_go():
            raise AssertionError(trouble)

    @classmethod
    def _let_ranks_go(cls) -> str:
        """End the worker pool of the class; return the error text, "" if there is none."""
        return current_session().engine.end_pool()

    def setUpRank(self) -> None:
        """Runs on every rank before the method. Does nothing by default."""

    def tearDownRank(self) -> None:
        """Runs on every rank after the method, also if the method failed. Does nothing by default."""

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        """Run the test, in the runner. The ranks get the result's setting for local variables in tracebacks."""
        self._shows_locals = bool(getattr(result, "tb_locals", False))
        return super().run(result)

    def join_or_run(self, fn: Callable[[], Any]) -> Callable[[], Any]:
        """Return the replacement of a bound test method: it waits for the ranks, or, on a rank, calls the method."""

        @functools.wraps(fn)
        def wrapper(self: WorldCase) -> Any:
            if self.rank != self.MAIN_PROCESS_RANK:
                return fn()
            self._join(fn)
            return None

        # Bound, as the method was: unittest's loader would treat a plain function as a static method and call it.
        return types.MethodType(wrapper, self)

    def _join(self, fn: Callable[[], Any]) -> None:
        """Call `_join_processes`, which classes override, and check that it has given the test a verdict."""
        self._join_processes(fn)
        if self._running is not None:
            raise self._without_verdict()

    def _without_verdict(self) -> UsageError:
        return UsageError(
            f"{self.id()}: the test has no verdict: its ranks have not been judged.\n"
            "The class overrides _join_processes.\n"
            "End the override with super()._join_processes(fn), or with self._check_return_codes."
        )

    def _join_processes(self, fn: Callable[[], Any]) -> None:
        raise NotImplementedError

    def _current_test_name(self) -> str:
        return self.id().rpartition(".")[2]

    def _ask_for_ranks(
        self,
        size: object,
        isolation: object,
        *,
        lacking: str | None = None,
        file_name: str = "",
        **keeps: Any,
    ) -> RunningCase:
        """Check the test, which may skip it, and start its ranks, with size and isolation as the class gives them.

        `lacking` is a need that the class knows to be missing, `file_name` the file that the ranks share for a
        rendezvous. `keeps` has fields of `CaseBody`: what the test may leave to the next one on the same ranks.
        """
        session = current_session()
        method = getattr(type(self), self._testMethodName, None)
        spec = session.engine.spec
        # Before the size is checked: a class may have as many ranks as there are GPUs, which can be 0.
        environment = ChainMap({"WORLD_SIZE": str(size)}, os.environ)
        if method and (unmet := unmet_requirement(method, environment)):
            self._skip_or_fail(unmet, max(spec.world_sizes))
        session.check_no_existing_rank(self.id())
        world_size, timeout_s, how = self._checked(method, size, isolation)
        if not isinstance(self.strict_collectives, bool | None):
            raise self._wrong("strict_collectives", self.strict_collectives, "True, False or None")
        strict_calls = session.is_strict(self.strict_collectives)
        settings = {**spec.settings, **self._settings(), **getattr(method, SETTINGS, {})}
        if missing := missing_need(spec, world_size, settings) or lacking:
            self._skip_or_fail(missing, world_size)
        cls = type(self)
        content = UnittestCase(
            ClassName.of(cls),
            self._testMethodName,
            self._shows_locals,
            file_name,
            # torch's classes pass it on, and those of FSDP read it.
            fake_pg=bool(getattr(self, "fake_pg", False)),
            values=write_values(cls, lambda: session.engine.prepare()[1].path),
        )
        case = Case(
            name=self.id(),
            world_size=world_size,
            body=CaseBody(FRONT_END, UNITTEST_CASES.to_wire(content).decode(), strict_calls=strict_calls, **keeps),
            timeout_s=timeout_s,
            isolation=how.name,
            pool=f"{cls.__module__}.{cls.__qualname__}" if how.reuse is Reuse.RANKS else "",
            init=False,
            with_store=self._with_store,
            expected_exits=declared_exits(method) if method else {},
            settings=settings,
            limit_switch=self._limit_switch,
        )
        self._running = running = session.engine.start(case)
        # The ranks never outlive the test, even if setUp fails after this, or the method does not run.
        self.addCleanup(self._stop_ranks)
        return running

    def _settings(self) -> dict[str, Any]:
        """Return what the class asks of add-ons, by attributes of their names, which are no methods."""
        values = {add_on.name: getattr(self, add_on.name, None) for add_on in add_ons() if add_on.setting}
        return read_settings(self.id(), {name: value for name, value in values.items() if not callable(value)})

    def _skip_or_fail(self, missing: str, world_size: int) -> NoReturn:
        """Skip the test for something missing; fail if it is hardware that is promised, or that may not be missing."""
        if (error := current_session().promise_error(self.id(), missing, world_size)) is not None:
            self._expect_no_failure()
            raise error
        self.skipTest(missing)

    def _wait_for_ranks(self) -> CaseResult:
        running, self._running = self._running, None
        assert running is not None
        result = current_session().engine.finish(running)
        with warnings.catch_warnings():
            # The ranks have applied the filters. Here they could turn a warning into an error, in place of the verdict.
            warnings.simplefilter("always")
            for warning in warnings_of(result):
                warnings.warn_explicit(str(warning.message), warning.category, warning.filename, warning.lineno)
        return result

    def _stop_ranks(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            current_session().engine.abandon(running)

    def _judge(self, result: CaseResult) -> None:
        """Report the ranks' verdict to unittest; see `Session.judge`."""
        try:
            current_session().judge(result)
        except CaseFailedError:
            self._expect_nothing_but_failures(result)
            raise

    def _expect_nothing_but_failures(self, result: CaseResult) -> None:
        # `expectedFailure` means an exception in the method. A crash, a hang or a broken machine is never expected,
        # nor, for unittest, a failure around the method.
        if not (result.has_only_raised and all(failure.phase == "call" for failure in result.failures)):
            self._expect_no_failure()

    def _expect_no_failure(self) -> None:
        if (outcome := self._outcome) is not None:  # type: ignore[attr-defined]  # unittest's own, not in typeshed
            outcome.expecting_failure = False

    def _checked(self, method: object, size: object, isolation: object) -> tuple[int, float, Isolation]:
        """Return the world size, the limit in seconds and the isolation of a test, whose method can run on ranks."""
        session = current_session()
        try:
            self._check_members()
            self._check_method(method)
            # torch's suites also give it as a text.
            number = number_in(size) if isinstance(size, str) else None
            world_size = check_world_size(self.id(), size if number is None else number)
            session.check_declared(self.id(), world_size)
            limit_s = session.timeout_s if self.case_timeout_s is None else self.case_timeout_s
            if not is_timeout(limit_s):
                raise self._wrong("case_timeout_s", limit_s, f"a number of seconds above 0, up to {MAX_TIMEOUT_S}")
            return world_size, float(limit_s), self._checked_isolation(isolation)
        except DistTestingError as error:
            # The text is for the user; a traceback through this library does not help.
            raise error.with_traceback(None) from None

    def _checked_isolation(self, name: object) -> Isolation:
        name = name or current_session().engine.spec.isolation
        if name not in isolation_names():
            raise self._wrong("isolation", name, f"one of {', '.join(isolation_names())}")
        isolation = isolation_named(str(name))
        if isolation.in_process:
            raise UsageError(
                f'{self.id()}: isolation = "{isolation.name}" for a class whose ranks are processes.\n'
                "The class, the target or the command line sets this isolation, whose ranks are threads.\n"
                "Derive the class from MultiThreadedTestCase, or run it with another isolation."
            )
        return isolation

    def _check_members(self) -> None:
        owner = next(cls for cls in type(self).__mro__ if "world_size" in vars(cls))
        if hasattr(type(self), "worldsize") and owner.__module__.startswith("dist_testing."):
            warnings.warn(
                f"{self.id()}: the class has an attribute worldsize, and sets no world_size.\n"
                "The library does not read it, so the world has the default size.\n"
                "Did you mean world_size?",
                RuntimeWarning,
                stacklevel=2,
            )
        if found := next((name for name in self._replaced if hasattr(self, name)), None):
            raise UsageError(
                f"{self.id()}: the class has a method {found}, which the library would never call.\n"
                "torch's class starts its ranks and talks to them by this method; here the engine does that.\n"
                "Put code for the ranks into setUpRank and tearDownRank. "
                "docs/evidence/torch_names.md has the members that work."
            )

    def _check_method(self, method: object) -> None:
        if hasattr(self, "asyncSetUp"):
            raise UsageError(
                f"{self.id()}: the class derives from unittest.IsolatedAsyncioTestCase.\n"
                "A rank calls the method without the event loop of that class.\n"
                "Leave that base class out; asyncio.run() in a plain method runs a coroutine."
            )
        if kind := without_effect(method):
            raise UsageError(
                f"{self.id()}: the test method is {kind}.\n"
                "A rank only calls the method, and such a call does not run its body.\n"
                "Make it a plain method; asyncio.run() in it runs a coroutine."
            )

    def _wrong(self, name: str, value: object, expected: str) -> UsageError:
        return UsageError(
            f"{self.id()}: {name} = {value!r}; expected {expected}.\n"
            "It comes from an attribute or a property of the class.\n"
            "Correct it in the class."
        )

    @classmethod
    def _open_rank(cls, rank: int, world_size: int, directory: str) -> None:
        """Make, once per rank, the objects that the tests of this class share. All ranks share the `directory`."""

    @classmethod
    def _run_on_rank(cls, rank: int, case: UnittestCase, pipe: RankPipe) -> None:
        """On a rank: make an instance and have it run its method by the pipe."""
        raise NotImplementedError


def without_effect(function: object) -> str:
    """Return "an async def" or "a generator" if a call of the function does not run its body; "" if it does."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "an async def"
    return "a generator" if inspect.isgeneratorfunction(function) else ""


def default_world_size() -> int:
    """Return the world size of a class that sets none: the target's, the command line's or torchrun's; else 4."""
    return max(current_session().engine.spec.world_sizes)


setattr(WorldCase, RUNS_ON_RANKS, True)
