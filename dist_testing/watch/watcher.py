"""The watcher: it has torch and the library imported, and nothing of the user's. It forks a run after each save."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence

from dist_testing.core.ground.errors import LaunchError
from dist_testing.core.ground.outcomes import exit_name
from dist_testing.core.ground.procfs import children_of
from dist_testing.core.launch.clean import unclean_reasons
from dist_testing.core.process.lifetime import become_subreaper, check_platform, end_child
from dist_testing.core.process.orphans import Orphans
from dist_testing.core.process.refusal import refusal
from dist_testing.watch.files import Files, forget_compiled, own_files
from dist_testing.watch.loop import EndWatchError, Loop
from dist_testing.watch.messages import Finished, Imported, Reported, WatchEvent
from dist_testing.watch.project import Project, Results, syntax_error
from dist_testing.watch.run import Fork, Order, fork_run

# What each session with marked tests, or with classes of the library, imports.
_WARM = ("torch.distributed", "dist_testing.core.pytest.in_runner", "dist_testing.core.unittest.classes")
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
# pytest's exit code of a session without tests.
_NO_TESTS = 5
# A message names this many files.
_NAMED = 3


def watch(project: Project, check_pattern: Callable[[str], object]) -> Fork:
    """Watch the project until the user ends it, by SystemExit. Returns only in a run."""
    check_platform()
    watcher = _Watcher(project, check_pattern)
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

    def __init__(self, project: Project, check_pattern: Callable[[str], object]) -> None:
        self.loop = Loop(Files())  # what it waits with
        self.code = 0  # 1 if the last run failed
        self._project = project
        self._check_pattern = check_pattern
        self._results = Results(project)
        # This process has read these; their change needs a new one.
        self._own: set[str] = set()
        # Changes that no complete run has seen.
        self._unseen: set[str] = set()
        self._pattern = ""
        # Whether the user has not read yet that the watch waits.
        self._has_news = True

    def serve(self) -> Fork | None:
        """Watch until this process is out of date. In a run, return what it is for."""
        loop = self.loop
        self._begin()
        order: Order | None = Order()
        why = "at the start"
        while True:
            if order is not None:
                if (fork := self._run_tests(order, why)) is not None:
                    return fork
                self._has_news = True
            if self._has_news and not self._is_disturbed():
                self._has_news = False
                _say(f"watch: waiting for a save ({len(loop.files)} files)")
            loop.wait(self._is_disturbed)
            if loop.changed:
                changed, loop.changed = loop.changed, set()
                self._has_news = True
                forget_compiled(changed)
                self._unseen |= changed
                if stale := sorted(self._unseen & self._own):
                    _say(f"watch: {_names(stale)} changed, which this process has read: starting again")
                    return None
                order, why = self._after_save(), f"after the save of {_names(sorted(changed))}"
            else:
                order, why = self._obey(loop.commands.pop(0)), "by command"

    def close(self) -> None:
        """End the run, and wait until nothing of it is left."""
        run = self.loop.run
        if run is not None and run.code is None:
            run.stop()
            end_child(run.pid, run.pidfd, _CLOSE_LIMIT_S)
        Orphans().remove()

    def _begin(self) -> None:
        began_ns = time.time_ns()
        files = self.loop.files
        for argument in self._project.arguments:
            path = self._project.path_of(argument)
            if os.path.isdir(path):
                files.add_tree(path)
            elif os.path.exists(path) or not self._project.has_package_names:
                files.add([path], began_ns)
            files.add(self._project.conftests_above(path), began_ns)
        _say(_HELP if self.loop.has_terminal else _NO_TERMINAL)
        _say("watch: loading torch")
        _import_warm()
        self._own = {*own_files(), *([self._project.configuration] if self._project.configuration else [])}
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

    def _is_disturbed(self) -> bool:
        return bool(self.loop.changed or self.loop.commands)

    def _after_save(self) -> Order | None:
        """Return the order to run what the changes concern; None if no test can run."""
        if errors := [error for path in sorted(self._unseen) if path.endswith(".py") and (error := syntax_error(path))]:
            for error in errors:
                _say(f"watch: {error}")
            _say("watch: no test runs until this parses")
            return None
        left_out = self._results.unaffected(self._unseen)
        present = [argument for argument in self._project.arguments if self._project.exists(argument)]
        chosen = [argument for argument in present if self._project.path_of(argument) not in left_out]
        if not chosen:
            gone = [argument for argument in self._project.arguments if argument not in present]
            _say(
                f"watch: {_names(gone)} is gone; no test runs until it is back"
                if gone
                else f"watch: no test is in {_names(sorted(self._unseen))}"
            )
            return None
        return Order(tuple(chosen), left_out, failed=tuple(self._results.failed), pattern=self._pattern)

    def _obey(self, command: str) -> Order | None:
        """Return the order of a line that the user has typed; None if no test runs."""
        letter, _, rest = command.partition(" ")
        rest = rest.strip()
        match letter:
            case "q":
                raise EndWatchError
            case "a" | "":
                self._pattern = ""
                return self._every(failed=tuple(self._results.failed))
            case "f" if self._results.failed:
                return self._every(failed=tuple(self._results.failed), only_failed=True)
            case "f":
                _say("watch: no test has failed")
            case "p" if rest:
                if self._is_pattern(rest):
                    self._pattern = rest
                    return self._every(failed=tuple(self._results.failed), pattern=rest)
            case "d":
                return self._debug(*rest.partition(" ")[::2])
            case _:
                _say(_HELP)
        return None

    def _every(
        self, *, failed: tuple[str, ...], only_failed: bool = False, pattern: str = "", debug_rank: int | None = None
    ) -> Order:
        present = tuple(argument for argument in self._project.arguments if self._project.exists(argument))
        return Order(present, failed=failed, only_failed=only_failed, pattern=pattern, debug_rank=debug_rank)

    def _debug(self, rank: str, pattern: str) -> Order | None:
        if not (rank.isascii() and rank.isdecimal()):
            _say(f"watch: {rank!r} is no rank; type d, its number, from 0, and then a pattern, such as d 1 all_reduce")
        elif pattern.strip():
            if self._is_pattern(pattern.strip()):
                return self._every(failed=(), pattern=pattern.strip(), debug_rank=int(rank))
        elif not self._results.failed:
            _say("watch: no test has failed; type d, the rank and a pattern, such as d 1 all_reduce")
        else:
            return self._every(failed=(next(iter(self._results.failed)),), only_failed=True, debug_rank=int(rank))
        return None

    def _is_pattern(self, text: str) -> bool:
        try:
            self._check_pattern(text)
        except Exception as error:
            _say(f"watch: {error}")
            return False
        return True

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

        def is_over() -> bool:
            return run.code is not None

        def is_told() -> bool:
            return is_over() or any(isinstance(event, Finished) for event in run.events)

        def is_disturbed() -> bool:
            # The lines and the saves of a debugger's user are not for the watch.
            return self._is_disturbed() and not loop.is_debugging

        loop.wait(lambda: is_told() or is_disturbed())
        is_whole = is_told()
        if is_whole:
            self._results.learn(run.events, order)
            self._tell(run.events, run.code, why, time.monotonic() - began_s)
            # Its threads, or exit handlers, may never end.
            loop.wait(lambda: is_over() or is_disturbed())
        if not is_over():
            run.stop()
            loop.wait(is_over)
        loop.is_debugging = False
        files = {file for event in run.events if isinstance(event, Imported) for file in event.files}
        loop.changed |= loop.files.add(files, began_ns)
        if not is_whole:
            _say("watch: the run was stopped")
        return None

    def _tell(self, events: Sequence[WatchEvent], code: int | None, why: str, elapsed_s: float) -> None:
        worst: dict[str, str] = {}
        for event in events:
            if isinstance(event, Reported) and worst.get(event.node_id) != "failed":
                worst[event.node_id] = event.outcome
        outcomes = list(worst.values())
        counts = [f"{count} {word}" for word in ("failed", "passed", "skipped") if (count := outcomes.count(word))]
        codes = [event.code for event in events if isinstance(event, Finished)]
        self.code = int(codes[-1:] not in ([0], [_NO_TESTS]))
        if codes:
            self._unseen.clear()
        else:
            counts.append(f"the run ended before its session did, by {exit_name(code or 0)},")
        _say(f"watch: {', '.join(counts) or 'no test ran'} in {elapsed_s:.2f} s {why}")
        if earlier := [node_id for node_id in self._results.failed if node_id not in worst]:
            _say(f"watch: {len(earlier)} failed earlier: {_names(earlier)}")


def _import_warm() -> None:
    """Import what all runs need."""
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
        print(text, flush=True)
    except OSError:
        signal.raise_signal(signal.SIGHUP)
