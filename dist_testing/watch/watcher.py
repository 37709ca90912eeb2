"""The watcher: it has torch and the library imported, and nothing of the user's. It forks a run after each save."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import time
from collections.abc import Collection

from dist_testing.core.engine.report_text import print_line
from dist_testing.core.ground.errors import LaunchError
from dist_testing.core.ground.outcomes import exit_name
from dist_testing.core.ground.procfs import children_of
from dist_testing.core.ground.spec import number_in
from dist_testing.core.launch.clean import unclean_reasons
from dist_testing.core.process.lifetime import become_subreaper, check_platform, end_child
from dist_testing.core.process.orphans import Orphans
from dist_testing.core.process.refusal import refusal
from dist_testing.watch.loop import EndWatchError, Loop, forget_compiled, own_files
from dist_testing.watch.run import Fork, Order, Project, Run, fork_run, syntax_error

# What each session with marked tests, or with classes of the library, imports.
_CORE = "dist_testing.core"
_WARM = ("torch.distributed", f"{_CORE}.pytest.in_runner", f"{_CORE}.unittest.continuous", f"{_CORE}.unittest.process")
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
# Seconds for a run to end when the watch does.
_CLOSE_LIMIT_S = 30.0
# Process ends by a signal as in a shell.
_BY_SIGNAL = 128
_HELP = (
    "watch: type a letter and Enter: a all tests, f failed tests, p PATTERN tests by pattern, "
    "d RANK [PATTERN] debug a rank, q quit"
)
_NO_TERMINAL = "watch: the standard input is not a terminal, so there are no commands; Ctrl-C or SIGTERM ends the watch"
# pytest's exit codes of a session without tests, and of one with a wrong pattern or option.
_NO_TESTS, _USAGE = 5, 4
# A message names this many files.
_NAMED = 3


def watch(project: Project) -> Fork:
    """Watch the project until the user ends it, by SystemExit. Returns only in a run."""
    check_platform()
    watcher = _Watcher(project)
    code = 0
    try:
        with watcher.loop:
            fork = watcher.serve()
        if fork is not None:
            return fork
    except EndWatchError as end:
        code = _BY_SIGNAL + end.signal if end.signal else watcher.code
    except LaunchError as error:
        print(error, file=sys.stderr)
        code = 1
    else:
        os.chdir(project.directory)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    watcher.close()
    _say("watch: ended, and nothing is left")
    raise SystemExit(code)


class _Watcher:
    """Decides what runs."""

    def __init__(self, project: Project) -> None:
        self.loop = Loop()
        self.code = 0  # 1 if the last run failed
        self._project = project
        # This process has read these; their change needs a new one.
        self._own: set[str] = set()
        # Changes that no complete run has seen.
        self._unseen: set[str] = set()
        self._pattern = ""

    def serve(self) -> Fork | None:
        """Watch until this process is out of date. In a run, return what it is for."""
        loop = self.loop
        self._begin()
        order: Order | None = Order()
        why = "at the start"
        # Whether the user has not read yet that the watch waits.
        has_news = True
        while True:
            if order is not None:
                if (fork := self._run_tests(order, why)) is not None:
                    return fork
                has_news = True
                run = loop.run
                if run is not None and run.code == _USAGE and not (run.told.files or self._project.tests):
                    # It has imported the conftest files, and refused the command line, which no save changes.
                    self.code = _USAGE
                    raise EndWatchError
            if has_news and not loop.is_disturbed():
                has_news = False
                _say(f"watch: waiting for a save ({len(loop.files)} files)")
            loop.wait(loop.is_disturbed)
            if loop.changed:
                changed, loop.changed = loop.changed, set()
                has_news = True
                forget_compiled(changed)
                self._unseen |= changed
                is_parsed = self._is_parsed()
                if is_parsed and (stale := sorted(self._unseen & self._own)):
                    _say(f"watch: {_names(stale)} changed, which this process has read: starting again")
                    return None
                order, why = self._after_save() if is_parsed else None, f"after the save of {_names(sorted(changed))}"
            else:
                letter, _, rest = loop.commands.pop(0).partition(" ")
                order, why = self._obey(letter, rest.strip()), "by command"

    def close(self) -> None:
        """End the run, and wait until nothing of it is left."""
        run = self.loop.run
        if run is not None and run.code is None:
            run.stop()
            end_child(run.pidfd, _CLOSE_LIMIT_S)
        Orphans().remove()

    def _begin(self) -> None:
        began_ns = time.time_ns()
        files, project = self.loop.files, self._project
        for argument in project.arguments:
            path = project.path_of(argument)
            if os.path.isdir(path):
                files.add_folder(path, is_tree=True)
            elif os.path.exists(path) or not project.has_package_names:
                files.add([path], began_ns)
            files.add(project.conftests_above(path), began_ns)
        _say(_HELP if self.loop.has_terminal else _NO_TERMINAL)
        _say("watch: loading torch")
        _import_warm()
        self._own = {*own_files(), *filter(None, [project.configuration])}
        self.loop.changed |= files.add(self._own, began_ns)
        reasons = unclean_reasons()
        if children_of(os.getpid()):
            reasons.append("a process was started")
        if reasons:
            raise LaunchError(
                f"The process of the watch mode cannot be forked: {'; '.join(reasons)}.\n"
                "It imports torch. A plugin of pytest, or torch itself, has started a thread or used a GPU.\n"
                "Leave the plugin out with -p no:NAME, or run pytest without --dist-watch."
            )
        become_subreaper()
        gc.collect()
        # The garbage collector of a run does not touch frozen objects, so their pages stay shared.
        gc.freeze()

    def _is_parsed(self) -> bool:
        """Return whether the changed files that runs have read can be parsed. Others may be templates."""
        read = sorted(path for path in self._unseen & self._project.files if path.endswith(".py"))
        errors = [error for path in read if (error := syntax_error(path))]
        for error in errors:
            _say(f"watch: {error}")
        if errors:
            _say("watch: no test runs until this parses")
        return not errors

    def _after_save(self) -> Order | None:
        """Return the order to run what the changes concern; None if no test can run."""
        project = self._project
        left_out = project.unaffected(self._unseen)
        present = project.present()
        chosen = tuple(argument for argument in present if project.path_of(argument) not in left_out)
        if chosen:
            return Order(chosen, left_out, tuple(project.failed), pattern=self._pattern)
        if gone := [argument for argument in project.arguments if argument not in present]:
            _say(f"watch: {_names(gone)} is gone; no test runs until it is back")
        else:
            _say(f"watch: no test is in {_names(sorted(self._unseen))}")
        return None

    def _obey(self, letter: str, rest: str) -> Order | None:
        """Return the order of a line that the user has typed; None if no test runs."""
        present, failed = self._project.present(), tuple(self._project.failed)
        match letter:
            case "q":
                raise EndWatchError
            case "a" | "":
                self._pattern = ""
                return Order(present, failed=failed)
            case "f" if failed:
                return Order(present, failed=failed, only_failed=True)
            case "f":
                _say("watch: no test has failed")
            case "p" if rest:
                self._pattern = rest
                return Order(present, failed=failed, pattern=rest)
            case "d":
                named, _, pattern = rest.partition(" ")
                if (rank := number_in(named)) is None:
                    _say(f"watch: {named!r} is no rank; type d, its number, and a pattern, such as d 1 all_reduce")
                elif pattern.strip():
                    return Order(present, pattern=pattern.strip(), debug_rank=rank)
                elif failed:
                    return Order(present, failed=failed[:1], only_failed=True, debug_rank=rank)
                else:
                    _say("watch: no test has failed; type d, the rank and a pattern, such as d 1 all_reduce")
            case _:
                _say(_HELP)
        return None

    def _run_tests(self, order: Order, why: str) -> Fork | None:
        """Run tests, and end the run at a save or a command. In the run, return what it is for."""
        loop = self.loop
        began_ns, began_s = time.time_ns(), time.monotonic()
        try:
            run = fork_run(order)
        except OSError as error:
            _say(f"watch: this machine has no room for another process: {refusal(error)}")
            return None
        if isinstance(run, Fork):
            return run
        loop.run, loop.is_debugging = run, order.debug_rank is not None

        def is_told() -> bool:
            return run.code is not None or run.told.code is not None

        loop.wait(lambda: is_told() or loop.is_disturbed())
        is_whole = is_told()
        if is_whole:
            self._project.learn(run.told, order)
            self._tell(run, f"in {time.monotonic() - began_s:.2f} s {why}")
            # Its threads, or exit handlers, may never end.
            loop.wait(lambda: run.code is not None or loop.is_disturbed())
        run.stop()
        loop.wait(lambda: run.code is not None)
        loop.is_debugging = False
        loop.changed |= loop.files.add(run.told.files, began_ns)
        if not is_whole:
            self._project.learn(run.told, order)
            _say("watch: the run was stopped")
        return None

    def _tell(self, run: Run, when: str) -> None:
        told = run.told
        outcomes = list(told.outcomes.values())
        counts = [f"{count} {word}" for word in ("failed", "passed", "skipped") if (count := outcomes.count(word))]
        self.code = int(told.code not in (0, _NO_TESTS))
        if told.code is None:
            counts.append(f"the run ended before its session did, by {exit_name(run.code or 0)},")
        else:
            self._unseen.clear()
        if told.code == _USAGE:
            self._pattern = ""
        _say(f"watch: {', '.join(counts) or 'no test ran'} {when}")
        if earlier := [node_id for node_id in self._project.failed if node_id not in told.outcomes]:
            _say(f"watch: {len(earlier)} failed earlier: {_names(earlier)}")


def _import_warm() -> None:
    # A pool of threads would not survive the fork. The tests' own imports are not limited.
    is_limited = _BLAS_THREADS not in os.environ
    if is_limited:
        os.environ[_BLAS_THREADS] = "1"
    for name in _WARM:
        importlib.import_module(name)
    # An import may have set another value.
    if is_limited and os.environ.get(_BLAS_THREADS) == "1":
        del os.environ[_BLAS_THREADS]


def _names(paths: Collection[str]) -> str:
    shown = [os.path.relpath(path) if os.path.isabs(path) else path for path in list(paths)[:_NAMED]]
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(shown) + more


def _say(text: str) -> None:
    # The terminal may be gone, which SIGHUP tells, too.
    try:
        print_line(text)
    except OSError:
        signal.raise_signal(signal.SIGHUP)
