"""Runs a pytest item on a rank, which was forked from a process that had collected the tests."""

from __future__ import annotations

import functools
import re
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from dist_testing.core.ground.add_ons import call_parts
from dist_testing.core.ground.case import CaseBody
from dist_testing.core.ground.error_text import message_of, shorten
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.spec import program_of
from dist_testing.core.ground.world import World
from dist_testing.core.launch.isolation import FORK
from dist_testing.core.process.launcher_messages import RankStart
from dist_testing.core.pytest.internals import (
    finding_added_xfail,
    keep_temporary_files_in,
    write_terminal_to,
    xfailed_key,
)
from dist_testing.core.pytest.marked_items import is_method_of_unittest
from dist_testing.core.pytest.rank_plugins import (
    leave_out_plugins_of_runner,
    log_to_output,
    print_warnings,
    run_in_wrappers,
    run_phases,
)
from dist_testing.core.pytest.reports import EXPECTED, UNEXPECTED, expected_by, reason_of_added_xfail, skip_reason
from dist_testing.core.rank.bootstrap import RankFrontEnd
from dist_testing.core.rank.capture import debug_by
from dist_testing.core.rank.generators import load_generators, seed_generators
from dist_testing.core.rank.rank_world import RankWorld
from dist_testing.core.rank.reporter import Reporter
from dist_testing.core.session.front_ends import make_front_end
from dist_testing.core.session.session import current_session

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

# `CaseBody.front_end` of marked tests; the content is the name of the item, by `rank_name`.
FRONT_END = "pytest"
# Module of the fixtures `world` and `world_size`.
_PLUGIN = f"{__package__}.plugin"
# A docstring of several lines in the source that pytest shows: that of `init_process_group` has more than a hundred.
_DOCSTRING = re.compile(r'^ +[rR]?("""|\'\'\')((?!\1).)*\n( ((?!\1).)*\n)* ((?!\1).)*\1 *\n', re.MULTILINE)
# What a rank that is a thread does not find in its environment.
_LAUNCHERS = re.compile(r"\b(RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)\b")
# Limits of what a test can record as its properties: a report must stay small.
_MAX_PROPERTIES = 100
_MAX_CHARS = 500
_NO_LOG_CAPTURE = (
    "A rank calls request.getfixturevalue for `caplog`, but pytest's log capture is off.\n"
    "It is on only if a collected test, or a fixture of one, names `caplog` as an argument.\n"
    "Name it as an argument."
)


class _ThisRank(threading.local):
    """The rank that runs on this thread: the only one of its process, or one of several."""

    world: World | None = None
    reporter: Reporter
    body: Callable[[], object]
    is_in_test = False
    sub_test_error: BaseException | None = None


_this = _ThisRank()


def current_world() -> World | None:
    """Return the world of the rank that runs on this thread; None in the runner."""
    return _this.world


class PytestRankContext:
    """The rank context of a pytest session: the collected items, and a pytest that is fit for a rank."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        # Those that run on ranks, by `rank_name`; filled when the tests have been collected.
        self.items: dict[str, pytest.Item] = {}
        self._reporting = _RankReporting()
        # Makes the calling thread's own copy of an item, where ranks are threads.
        self._own_item: Callable[[pytest.Item], pytest.Item] | None = None
        self._thread_cases = 0
        self._explaining: Any = None
        # Of files that could not be collected, where ranks collect the tests themselves.
        self.collection_errors: list[str] = []

    def prepare(self) -> None:
        """Switch off the plugins of pytest that belong to the runner."""
        config = self._config
        # pytest's capture was started in the runner. `capsys` and `capfd` need a manager, but not one that captures.
        captured: Any = config.pluginmanager.unregister(name="capturemanager")
        if captured is not None:
            fresh = type(captured)("no")
            config.pluginmanager.register(fresh, "capturemanager")
            fresh.start_global_capturing()
        # Else each sub-test captures its output, and only its report, which no rank prints, has it.
        config.option.capture = "no"
        print_warnings()
        log_to_output(config)
        if (session := current_session()) is not None and (target := session.engine.spec.target):
            debug_by(f"bazel build {target} && {program_of(target)}")
        # Output of pytest itself on a rank, such as of --setup-show, goes into the rank's output.
        write_terminal_to(config, sys.stdout)
        # The runner judges skip marks and expected failures, once for all ranks. Only a rank knows the marks that its
        # test adds to itself.
        config.pluginmanager.unregister(name="skipping")
        leave_out_plugins_of_runner(config)
        if any(seeding := [is_method_of_unittest(item) for item in self.items.values()]):
            load_generators()
        if all(seeding):
            # Marked tests keep the generators as their file has left them.
            seed_generators()
        config.pluginmanager.register(self._reporting)
        if not any("caplog" in getattr(item, "fixturenames", ()) for item in self.items.values()):
            # The plugin adds handlers to each of torch's 42 loggers, three times per test.
            config.pluginmanager.unregister(name="logging-plugin")
            self._reporting.refused = {"caplog": _NO_LOG_CAPTURE}

    def front_end(self, body: CaseBody) -> RankFrontEnd:
        """Return pytest's, or the one that the case names: a method of a unittest class brings its own rules."""
        try:
            if body.front_end != FRONT_END:
                return make_front_end(body.front_end, self._config, self.items)
            if body.content not in self.items:
                raise UsageError(
                    f"This rank has not collected {body.content}.\n"
                    "The test files, or modules that they import, differ from the runner's.\n"
                    "Give all ranks the same files, and collect the same tests in every process."
                )
        except UsageError as error:
            # A file that could not be imported here has registered no front end, and no test.
            raise UsageError("\n".join([str(error), *self.collection_errors])) from error
        return PytestRankFrontEnd(self._config, self.items)

    def in_process_front_ends(self, body: CaseBody, world_size: int) -> Sequence[RankFrontEnd]:
        """Return one for each rank, with its own copy of what pytest keeps while a test runs; they share the store."""
        from torch._C._distributed_c10d import HashStore

        if self._own_item is None:
            any_item = next(iter(self.items.values()))
            add_on, items = next(call_parts("pytest_items", self._config, any_item.session))
            self._reporting.refused = add_on.load("refused_fixtures")
            self._own_item = items.own
            # The details of assertions, such as a diff: for all threads, until the process ends.
            if (assertion := self._config.pluginmanager.getplugin("assertion")) is not None:
                self._explaining = assertion.pytest_runtest_protocol(any_item)
                next(self._explaining)
        store = HashStore()
        self._thread_cases += 1
        return [
            PytestRankFrontEnd(self._config, self.items, self._own_item, store, self._thread_cases - 1)
            for _ in range(world_size)
        ]


def run_as_test(item: pytest.Item, reporter: Reporter, body: Callable[[], object]) -> None:
    """Run `body` as pytest runs a test: it explains assertions, and the runner gets each warning."""
    _this.reporter, _this.body = reporter, body
    run_in_wrappers(item)


@dataclass(eq=False, slots=True)
class PytestRankFrontEnd:
    """Runs collected items on a rank."""

    config: pytest.Config
    # By `rank_name`.
    items: Mapping[str, pytest.Item]
    # Makes the calling thread's own copy of an item, where ranks are threads.
    own_item: Callable[[pytest.Item], pytest.Item] | None = None
    # What the ranks share; None for the store at the world's port.
    store: Store | None = None
    # How many cases the process has run before.
    cases: int = 0
    world: RankWorld = field(init=False)

    def open(self, start: RankStart, reporter: Reporter) -> None:
        """Make the world."""
        reporter.phase("init")
        self.world = _this.world = RankWorld.of(start, self.store, self.cases, reporter.runner)
        _this.reporter = reporter
        self.world.prepare()
        if start.rank != start.request.debug_rank:
            # Without a terminal a prompt reads the end of its input at once, and ends the test.
            for name in ("pdbinvoke", "pdbtrace"):
                self.config.pluginmanager.unregister(name=name)

    def run(self, body: CaseBody, reporter: Reporter) -> None:
        """Run one item as pytest would."""
        self.world.begin_case()
        item = self.items[body.content]
        item = item if self.own_item is None else self.own_item(item)
        reporter.expected_by = functools.partial(expected_by, item)
        if self.world.rank == 0:
            known = len(item.user_properties)
            reporter.recorded = lambda: tuple(
                (shorten(str(name), _MAX_CHARS), shorten(str(value), _MAX_CHARS))
                for name, value in item.user_properties[known : known + _MAX_PROPERTIES]
            )
        keep_temporary_files_in(item.config, self.world.pytest_tmp_path)
        try:
            if self.own_item is None:
                run_as_test(item, reporter, lambda: run_phases(item))
            else:
                # Wrappers do not expect several threads: those of warnings and assertions change the whole process.
                run_phases(item)
        except (pytest.exit.Exception, KeyboardInterrupt) as error:
            # The first is raised by `pytest.exit`, and when the user quits the debugger. pytest catches neither.
            if isinstance(error, pytest.exit.Exception):
                reporter.end_session(str(error))
            if not reporter.failed:
                reporter.raised(error, str(item.repr_failure(pytest.ExceptionInfo.from_exception(error))))

    def finish(self) -> None:
        """Destroy the groups."""
        self.world.finish()


class _RankReporting:
    """A pytest plugin that runs items on a rank, and reports phases and outcomes to the runner."""

    # Fixture to the error of a rank that uses it.
    refused: Mapping[str, str] = {}
    # `run_in_wrappers` leaves the other plugins of the library out.
    is_for_ranks = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> bool:
        """Run the item in place of the plugins that would."""
        _this.body()
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        if (text := self.refused.get(fixturedef.argname)) is not None:
            raise UsageError(text)
        is_ours = fixturedef.func.__module__ == _PLUGIN
        # One that takes the library's as its argument adds something to it.
        if fixturedef.argname == "world" and not is_ours and "world" not in fixturedef.argnames:
            warnings.warn(
                "A fixture `world` of the project hides the library's, which is the rank's view of its world. "
                "Rename it, or take `world` as its argument.",
                pytest.PytestWarning,
                stacklevel=1,
            )
        if fixturedef.argname == "world_size" and not is_ours:
            raise UsageError(
                "There is a fixture `world_size` that is not the library's.\n"
                "Its value and the real size of the world could differ.\n"
                "Rename the fixture, and set the size in the marker, as in world_size=2."
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        _this.reporter.phase("setup")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        _this.reporter.phase("call")
        _this.is_in_test = True
        try:
            yield from finding_added_xfail(item)
        finally:
            _this.is_in_test = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        _this.reporter.phase("teardown")

    # Around the hooks of conftests, which may change the report: its outcome counts, as in plain pytest.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        error = call.excinfo and call.excinfo.value
        if error is not None:
            _advise(error)
        report = yield
        if _this.is_in_test:
            # A sub-test has ended; the report that it logs names it.
            _this.sub_test_error = error
        elif report.passed and report.when == "call" and (mark := item.stash.get(xfailed_key, None)) and mark.strict:
            # No failure: another rank may fail, as the mark expects.
            _this.reporter.skipped(f"{UNEXPECTED}{mark.reason}")
        else:
            _send(report, error, reason=reason_of_added_xfail(item, error) if error is not None else "")
        return report

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage) -> None:
        if hasattr(_this, "reporter"):  # pytest also brings the warnings of the collection, when it registers this
            _this.reporter.warned(warning_message)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self) -> tuple[str, str, str]:
        """Have pytest print no letter for a sub-test, amid the output of the test."""
        return "", "", ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Report the end of a sub-test: a rank logs no other reports. A skipped sub-test does not skip the test."""
        error, _this.sub_test_error = _this.sub_test_error, None
        if _this.is_in_test and report.failed:
            _send(report, error, f"{report.head_line}\n")


def _advise(error: BaseException) -> None:
    """Add the way out, where torch and pytest cannot know it."""
    text = message_of(error)
    if "initialize the default process group twice" in text and _this.world is not None and _this.world._settings.init:
        error.add_note("The library has made the default group. Remove the call, or mark the test with init=False.")
    elif "the function scoped fixture world with a" in text and isinstance(error, pytest.fail.Exception):
        # pytest shows no notes of it.
        advice = "A world lives for one test. Give the fixture the scope of a function, or use dist.get_rank() in it."
        error.msg = f"{error.msg}\n{advice}"
    elif (
        isinstance(error, KeyError | ValueError)
        and _LAUNCHERS.search(text)
        and threading.current_thread() is not threading.main_thread()
    ):
        error.add_note(
            "Ranks that are threads share one environment, without the variables of a launcher: use world.rank, "
            "world.size and world.store.\n"
            f'RPC, and code that needs the variables, needs ranks that are processes: isolation="{FORK.name}".'
        )
    elif "async def functions are not natively supported" in text and isinstance(error, pytest.fail.Exception):
        error.msg = (
            f"{error.msg}\nSuch a plug-in runs the test on its ranks, too, if it is loaded and the test has its mark. "
            "Without one, make the test a plain function; asyncio.run() in it runs a coroutine."
        )


def _send(report: pytest.TestReport, error: BaseException | None, head: str = "", reason: str = "") -> None:
    """Tell the runner what pytest says of a part of the test, unless it passed. `error` is what test code has raised.

    `reason` says why the test expects it. A hook may have made the report a failure or a skip although test code raised
    nothing, or a pass although it did.
    """
    if report.passed:
        return
    if isinstance(error, pytest.FixtureLookupError):
        # Its text would be the representation of the fixture request.
        error.args = (error.msg or f"no fixture {error.argname!r}",)
    if isinstance(error, pytest.xfail.Exception):
        _this.reporter.skipped(f"{EXPECTED}{error.msg}")
    elif report.skipped:
        is_expected = hasattr(report, "wasxfail")
        _this.reporter.skipped(f"{EXPECTED}{report.wasxfail}" if is_expected else skip_reason(report))
    else:
        text = f"{head}{report.longrepr or 'a hook of pytest set the outcome to failed, without a text'}"
        text = _DOCSTRING.sub("", text)
        # The last line, as of a traceback: there the message is.
        _this.reporter.ended_by(error or pytest.fail.Exception(text.rstrip().rpartition("\n")[2]), text, reason)
