"""The watch mode of pytest and of a built target: `--dist-watch`.

The watcher takes over before pytest imports the first conftest file, and never returns. Its forks go on with the same
session from there, so each run is the session that the user has started, with other tests left out.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field, replace
from glob import glob
from pathlib import Path
from types import FrameType, ModuleType

import pytest

from dist_testing.core.ground.errors import InterruptedRunError, LaunchError, UsageError
from dist_testing.core.ground.outcomes import exit_name
from dist_testing.core.ground.spec import Spec
from dist_testing.core.launch.clean import spare_cuda
from dist_testing.core.pytest.internals import write_terminal_to
from dist_testing.core.pytest.marked_items import SPEC_KEY
from dist_testing.core.pytest.options import WATCH_OPTION
from dist_testing.core.session.existing_world import existing_rank
from dist_testing.watch.loop import own_files, sources_of
from dist_testing.watch.run import Fork, Project
from dist_testing.watch.watcher import watch

_DEBUG = "Leave it out, and type d while the watch waits: that opens the debugger on a rank."
# Options that a run after each save cannot honour: name in the namespace, spelling, way out.
_REFUSED = (
    ("numprocesses", "-n", "Leave -n out, or write -n0 behind it: the ranks of one test run side by side anyway."),
    ("dist_jobs", "--dist-jobs", "Leave it out: a save runs few tests, and the ranks of one run side by side anyway."),
    ("dist_debug_rank", "--dist-debug-rank", _DEBUG),
    ("usepdb", "--pdb", _DEBUG),
    ("trace", "--trace", _DEBUG),
    ("lf", "--lf", "Leave it out: failed tests come first, and f runs them alone."),
    ("failedfirst", "--ff", "Leave it out: failed tests come first."),
    ("newfirst", "--nf", "Leave it out: a save runs the tests that it concerns."),
    ("stepwise", "--sw", "Leave it out: failed tests come first, and -x stops at the first failure."),
    ("cov_source", "--cov", "Measure coverage in a run of its own; --no-cov takes back that of a configuration file."),
    ("collectonly", "--collect-only", "Leave one of the two out."),
)
# The name of the plugin of a run.
_RUN = "dist_testing_watch_run"


def watched_session(config: pytest.Config) -> Generator[None, object, object]:
    """Be the watch mode around the import of the first conftest files; the whole of `pytest_load_initial_conftests`.

    Without the option it only lets pytest import them.
    """
    given = config.known_args_namespace
    if not getattr(given, "dist_watch", False) or given.help or given.version:
        return (yield)
    try:
        check_watchable(config)
        spare_cuda()
        project = Project(
            directory=str(config.invocation_params.dir),
            root=str(config.rootpath),
            arguments=watched_arguments(config),
            configuration=str(config.inipath or ""),
            has_package_names=bool(given.pyargs),
            patterns=tuple(config.getini("python_files")),
        )
        fork = watch(project)
    except (LaunchError, UsageError) as error:
        raise pytest.UsageError(str(error)) from error
    run = _begin(config, fork)
    try:
        signal.signal(signal.SIGTERM, run.stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        return (yield)
    except KeyboardInterrupt:
        # There is no session yet that could end, and pytest would show the exception with all its frames. After Ctrl-C
        # the watcher sends its signal, too.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(1) from None
    except BaseException as error:
        run.tell_imports(error)
        raise


def watched_arguments(config: pytest.Config) -> tuple[str, ...]:
    """Return the files, folders and node ids that pytest will collect: it decides so after the first conftest files."""
    given = config.known_args_namespace
    named = list(map(str, given.file_or_dir))
    if not named and config.invocation_params.dir == config.rootpath:
        paths = config.getini("testpaths")
        named = paths if given.pyargs else [found for path in paths for found in sorted(glob(path, recursive=True))]
    return tuple(named or ["."])


def check_watchable(config: pytest.Config) -> None:
    """Refuse the watch mode where another option, the place of the option, or the environment rules it out."""
    given, plugins = config.known_args_namespace, config.pluginmanager
    if WATCH_OPTION not in map(str, config.invocation_params.args):
        raise UsageError(
            f"{WATCH_OPTION} comes from a configuration file or from PYTEST_ADDOPTS.\n"
            "Every pytest of this project would wait for saves, also those that tests and CI start.\n"
            "Write it on the command line itself."
        )
    for name, spelling, way_out in _REFUSED:
        if getattr(given, name, None) and not (name == "cov_source" and given.no_cov):
            raise UsageError(
                f"{WATCH_OPTION} with {spelling}.\n"
                "The watch mode runs parts of the session in forks of one process, and chooses the tests.\n"
                f"{way_out}"
            )
    if plugins.is_blocked("capturemanager") or plugins.is_blocked("terminalreporter"):
        raise UsageError(
            f"{WATCH_OPTION} without pytest's capture or terminal plugin.\n"
            "Each run needs files of its own for captured output, and reports to the terminal.\n"
            "Leave out -p no:capture and -p no:terminal."
        )
    if (existing := existing_rank()) is not None:
        _, rank = existing
        raise UsageError(
            f"{WATCH_OPTION} in a process that is rank {rank.rank} of {rank.size} (RANK is set).\n"
            "torchrun has started the ranks, and a save cannot start them again.\n"
            f"Run pytest {WATCH_OPTION} without torchrun: the library starts the ranks."
        )


def check_taken_over(config: pytest.Config) -> None:
    """Refuse a session with the option that is no run of a watch: this plugin was loaded too late."""
    if config.getoption("dist_watch") and not config.pluginmanager.has_plugin(_RUN) and not config.option.help:
        raise UsageError(
            f"{WATCH_OPTION}: a conftest file loads the plugin of dist_testing.\n"
            "The watch mode begins before that: it imports the conftest files again after a change.\n"
            "Load the plugin with -p dist_testing.core.pytest.plugin, on the command line or in addopts."
        )


def watch_target(spec: Spec, files: Sequence[str], repositories: Collection[str], arguments: Sequence[str]) -> int:
    """Watch the files of a target; see `test_session` for the arguments. Returns pytest's exit code in each run."""
    # Late: the plugin loads this module, and a session of pytest alone loads nothing of Bazel.
    from dist_testing.core.bazel.pytest_config import test_session
    from dist_testing.core.pytest import plugin as pytest_plugin

    class Target:
        # Before pytest configures any plugin. Nothing else of Bazel's protocol applies: a person reads the results.
        @pytest.hookimpl(tryfirst=True)
        def pytest_load_initial_conftests(self, early_config: pytest.Config) -> None:
            early_config.stash[SPEC_KEY] = spec

    command = test_session(files, repositories, arguments, fail_fast=False)
    return int(pytest.main(command, plugins=[Target(), pytest_plugin]))


def _begin(config: pytest.Config, forked: Fork) -> _Run:
    """Become a run: the session goes on with the tests of the order."""
    if forked.order.debug_rank is None:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
    if (capture := config.pluginmanager.getplugin("capturemanager")) is not None:
        # The files with captured output are those of the parent, and its other forks write into them.
        capture.read_global_capture()
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        # Python's own generator does the same at a fork.
        numpy_random.seed()
    run = _Run(config, forked)
    config.pluginmanager.register(run, _RUN)
    return run


@dataclass(eq=False, slots=True)
class _Run:
    """The plugin of a run: chooses its tests, and tells the watcher about them."""

    _config: pytest.Config
    _watcher: Fork
    _code: int | None = None
    _test_files: set[str] = field(default_factory=set)
    # Sources that an import has run, also one that has failed.
    _files: set[str] = field(default_factory=set)
    # Files that the watcher knows.
    _told: set[str] = field(default_factory=set)

    def stop(self, number: int, _: FrameType | None) -> None:
        """Handle the signal of the watcher: end the session without a word, because the next one follows at once."""
        if os.getpid() != self._watcher.pid:
            # A process that a test has forked.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        signal.signal(number, signal.SIG_IGN)
        if self._config.pluginmanager.has_plugin("terminalreporter"):
            write_terminal_to(self._config, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        if self._code is not None:
            # pytest would print the exception with all its frames, and the session is over in a moment.
            return
        raise InterruptedRunError(f"the runner got {exit_name(-number)}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> None:
        """Set the options of this run before any plugin is configured."""
        order, option = self._watcher.order, config.option
        if order.arguments:
            config.args[:] = order.arguments
        if order.pattern:
            option.keyword = f"({option.keyword}) and ({order.pattern})" if option.keyword else order.pattern
        if order.debug_rank is not None:
            option.dist_debug_rank, option.usepdb = str(order.debug_rank), True

    @pytest.hookimpl(tryfirst=True)
    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out test files that the change does not concern."""
        return True if str(collection_path) in self._watcher.order.left_out else None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the tests that failed last first, or leave out all others."""
        failed = set(self._watcher.order.failed)
        # A file that could not be collected has failed as a whole.
        chosen = [item for item in items if item.nodeid in failed or item.nodeid.partition("::")[0] in failed]
        names = {item.nodeid for item in chosen}
        others = [item for item in items if item.nodeid not in names]
        if self._watcher.order.only_failed and chosen:
            self._config.hook.pytest_deselected(items=others)
            others = []
        items[:] = [*chosen, *others]

    def pytest_exception_interact(self, node: pytest.Item | pytest.Collector, call: pytest.CallInfo[object]) -> None:
        """Note what a file that could not be collected has imported: nothing in `sys.modules` tells it."""
        if isinstance(node, pytest.Collector) and call.excinfo is not None:
            self._files |= sources_of(call.excinfo.value)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note the files with tests, and tell the watcher about one that could not be collected."""
        path = str(report.fspath) if report.fspath else ""
        if path.endswith(".py"):
            self._test_files.add(os.path.abspath(self._config.rootpath / path))
        if report.failed:
            self._watcher.tell(test=report.nodeid, outcome="failed")

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Tell the watcher what was collected and imported, before ranks are forked."""
        self._test_files.update(str(item.path) for item in session.items)
        self.tell_imports()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tell the watcher how a test ended."""
        if report.failed or report.when == "call" or report.skipped:
            self._watcher.tell(test=report.nodeid, outcome=report.outcome)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        """Tell the watcher what the test has imported on a rank alone; the runner tells its own at the end."""
        if os.getpid() != self._watcher.pid and (files := own_files() - self._told):
            replace(self._watcher, pid=os.getpid()).tell(files=sorted(files), tests=[])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Keep the exit code, and tell what tests have imported."""
        self._code = int(exitstatus)
        self.tell_imports()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_unconfigure(self) -> Generator[None]:
        """Tell the watcher the exit code when all reports are printed. The process itself ends a little later."""
        yield
        code, self._code = self._code, None
        if code is not None:
            self._watcher.tell(code=code)

    def pytest_keyboard_interrupt(self) -> None:
        """Let the session end: the watcher was interrupted, too, and would send its signal into the clean-up."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def tell_imports(self, error: BaseException | None = None) -> None:
        """Tell the watcher what was imported until now; `error` has ended the import of the conftest files."""
        if error is not None:
            self._files |= sources_of(error)
        plugins = [one for one in self._config.pluginmanager.get_plugins() if isinstance(one, ModuleType)]
        self._told = {*own_files(plugins), *self._files, *self._test_files}
        self._watcher.tell(files=sorted(self._told), tests=sorted(self._test_files))
