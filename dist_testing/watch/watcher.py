"""The watch mode: decides after each save which warm processes stay, and which tests run."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Sequence
from typing import NoReturn

from dist_testing.core.ground.errors import LaunchError
from dist_testing.core.process.lifetime import become_subreaper, check_platform, die_with_parent, fork
from dist_testing.watch.chain import Chain
from dist_testing.watch.files import Files, forget_compiled, own_files
from dist_testing.watch.graph import syntax_error
from dist_testing.watch.inert import Inertness
from dist_testing.watch.knowledge import Knowledge, Project
from dist_testing.watch.loop import EndWatchError, Loop
from dist_testing.watch.messages import (
    Finished,
    LoadConftests,
    Preload,
    Reported,
    RunTests,
)
from dist_testing.watch.warm import Fork

_TORCH = "torch.distributed"
# Process ends by a signal as in a shell.
_BY_SIGNAL = 128
_HELP = "watch: keys: a all tests, f failed tests, p tests by pattern, d debug a rank, q quit"
# pytest's exit code of a session without tests.
_NO_TESTS = 5
# A message names this many files.
_NAMED = 3


def watch(project: Project, check_pattern: Callable[[str], object]) -> Fork:
    """Watch the project until the user ends it. Returns only in a process that was forked for a part of the session.

    Args:
        project: What to watch.
        check_pattern: Raises an exception with a text if it is given a wrong expression for `-k`.

    Raises:
        SystemExit: At the end, in the watcher.
        LaunchError: If the platform is not Linux.
    """
    check_platform()
    ours, theirs = socket.socketpair()
    first = Preload((_TORCH,), ("",), (), may_hold=True)
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = fork()
    if pid == 0:
        die_with_parent(parent)
        ours.close()
        return Fork(first, theirs, Inertness(may_hold=True))
    theirs.close()
    become_subreaper()
    return _Watcher(project, Chain(pid, ours, first), check_pattern).run()


class _Watcher:
    def __init__(self, project: Project, chain: Chain, check_pattern: Callable[[str], object]) -> None:
        self._project = project
        self._chain = chain
        self._check_pattern = check_pattern
        self._files = Files()
        self._loop = Loop(self._files, lambda: chain.peers)
        # The watcher has read these; their change needs a new watcher.
        self._own = {*own_files(), *([project.configuration] if project.configuration else [])}
        self._known = Knowledge(project, self._own)
        # Orders whose process cannot be kept, with the files that it has imported; none if their import failed.
        self._refused: dict[Preload | LoadConftests, frozenset[str]] = {}
        # Changes that no complete run has seen.
        self._unseen: set[str] = set()
        self._pattern = ""
        self._code = 0
        self._next: RunTests | None = None
        # Whether the user has not read yet that the watch waits.
        self._has_news = True

    def run(self) -> NoReturn:
        code = 0
        restart = False
        try:
            with self._loop:
                restart = self._watch()
        except EndWatchError as end:
            code = _BY_SIGNAL + end.signal if end.signal else self._code
        except LaunchError as error:
            print(error, file=sys.stderr)
            code = 1
        finally:
            self._chain.close()
        if restart:
            os.chdir(self._project.directory)
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
        _say("watch: ended, and nothing is left")
        raise SystemExit(code)

    def _watch(self) -> bool:
        """Watch until the watcher itself is out of date."""
        began_ns = time.time_ns()
        self._files.add(self._own, began_ns)
        for argument in self._project.arguments:
            path = self._project.path_of(argument)
            if os.path.isdir(path):
                self._files.add_tree(path)
            elif os.path.exists(path) or not self._project.has_package_names:
                self._files.add([path], began_ns)
        _say("watch: loading torch" if not self._loop.keys.is_on else f"{_HELP}\nwatch: loading torch")
        if not self._loop.keys.is_on:
            _say("watch: the standard input is not a terminal, so keys are off; Ctrl-C or SIGTERM ends the watch")
        self._loop.wait(lambda: self._chain.last.parked is not None or self._chain.last.is_gone)
        parked = self._chain.last.parked
        if parked is None or parked.obstacles:
            why = "; ".join(parked.obstacles) if parked is not None else "it has ended"
            raise LaunchError(
                f"The first process of the watch mode cannot be forked: {why}.\n"
                "It imports torch. A plugin of pytest, or torch itself, has started a thread or used a GPU.\n"
                "Leave the plugin out with -p no:NAME, or run pytest without --dist-watch."
            )
        self._run_tests(RunTests(), "at the start")
        while True:
            self._warm_up()
            if self._has_news and not self._is_disturbed():
                self._has_news = False
                _say(f"watch: waiting for a save ({len(self._files)} files)")
            self._loop.wait(self._is_disturbed)
            if self._loop.changed:
                if self._on_save():
                    return True
            elif self._next is not None:
                order, self._next = self._next, None
                self._run_tests(order, "by key")
            else:
                self._on_key(self._loop.pressed.pop(0))

    def _is_disturbed(self) -> bool:
        return bool(self._loop.changed or self._loop.pressed or self._next)

    def _on_save(self) -> bool:
        """Run what a save concerns. Returns True if the watcher itself is out of date."""
        changed = self._take_changes()
        self._has_news = True
        if stale := sorted(self._unseen & self._own):
            _say(f"watch: {_names(stale)} changed, which this process has read: starting again")
            return True
        if errors := [error for path in sorted(self._unseen) if path.endswith(".py") and (error := syntax_error(path))]:
            for error in errors:
                _say(f"watch: {error}")
            _say("watch: no test runs until this parses")
            return False
        order = self._order(self._known.graph.affected(self._unseen, self._known.tests))
        if order is None:
            gone = [argument for argument in self._project.arguments if not self._exists(argument)]
            _say(f"watch: {_names(gone)} is gone; no test runs until it is back")
            return False
        self._run_tests(order, f"after the save of {_names(sorted(changed))}")
        return False

    def _take_changes(self) -> set[str]:
        changed, self._loop.changed = self._loop.changed, set()
        forget_compiled(changed)
        self._known.graph.forget(changed)
        self._unseen |= changed
        self._known.hot |= changed
        for order, files in list(self._refused.items()):
            if not files or not files.isdisjoint(changed):
                del self._refused[order]
        self._chain.drop(changed)
        return changed

    def _exists(self, argument: str) -> bool:
        return self._project.has_package_names or os.path.exists(self._project.path_of(argument))

    def _order(self, wanted: Collection[str]) -> RunTests | None:
        """Return the order to run the tests of some files; None if nothing is there to run."""
        chosen = []
        for argument in self._project.arguments:
            path = self._project.path_of(argument)
            if self._exists(argument) and (
                not self._known.tests or not os.path.isfile(path) or path in wanted or path not in self._known.tests
            ):
                chosen.append(argument)
        if not chosen:
            return None
        left_out = self._known.tests - set(wanted)
        return RunTests(tuple(chosen), tuple(sorted(left_out)), failed=tuple(self._known.failed), pattern=self._pattern)

    def _on_key(self, key: str) -> None:
        match key:
            case "q":
                raise EndWatchError
            case "a" | "\n" | "\r":
                self._pattern = ""
                self._next = self._every(failed=tuple(self._known.failed))
            case "f":
                if not self._known.failed:
                    _say("watch: no test has failed")
                else:
                    self._next = self._every(failed=tuple(self._known.failed), only_failed=True)
            case "p":
                self._loop.keys.ask("pattern, as for -k: ", self._on_pattern)
            case "d":
                self._loop.keys.ask("rank, and a pattern unless it is for the first failed test: ", self._on_debug)
            case _:
                _say(_HELP)

    def _every(
        self, *, failed: tuple[str, ...], only_failed: bool = False, pattern: str = "", debug_rank: int | None = None
    ) -> RunTests:
        arguments = tuple(argument for argument in self._project.arguments if self._exists(argument))
        return RunTests(arguments, (), failed, only_failed, pattern, debug_rank)

    def _on_pattern(self, text: str) -> None:
        if self._is_pattern(text):
            self._pattern = text
            self._next = self._every(failed=tuple(self._known.failed), pattern=text)

    def _on_debug(self, text: str) -> None:
        rank, _, pattern = text.partition(" ")
        if not (rank.isascii() and rank.isdecimal()):
            _say(f"watch: {rank!r} is no rank; type its number, from 0, and then a pattern, such as 1 all_reduce")
        elif pattern.strip():
            if self._is_pattern(pattern.strip()):
                self._next = self._every(failed=(), pattern=pattern.strip(), debug_rank=int(rank))
        elif not self._known.failed:
            _say("watch: no test has failed; type the rank and a pattern, such as 1 all_reduce")
        else:
            self._next = self._every(failed=(next(iter(self._known.failed)),), only_failed=True, debug_rank=int(rank))

    def _is_pattern(self, text: str) -> bool:
        try:
            self._check_pattern(text)
        except Exception as error:
            _say(f"watch: {error}")
            return False
        return bool(text)

    def _warm_up(self) -> None:
        """Have the unchanged modules of the last run imported ahead of the next one."""
        orders = [order for order in self._known.orders() if order not in self._refused]
        self._chain.fit(orders)
        for order in orders[len(self._chain.peers) - 1 :]:
            began_ns = time.time_ns()
            peer = self._chain.grow(order, self._loop.wait)
            self._loop.changed |= self._files.add(peer.files, began_ns)
            if peer.parked is None:
                self._refused[order] = frozenset()
                return
            if peer.parked.obstacles:
                self._refused[order] = peer.files
                what = "the conftest files" if isinstance(order, LoadConftests) else "the modules of the tests"
                _say(f"watch: each run imports {what} again: {'; '.join(peer.parked.obstacles)}")

    def _run_tests(self, order: RunTests, why: str) -> None:
        """Run tests. A save or a key ends the run; the main loop then starts the next."""
        self._warm_up()
        if self._refused.get(LoadConftests()) == frozenset():
            _say("watch: no test runs until the conftest file can be imported")
            return
        if self._loop.changed:
            return
        began_ns, began_s = time.time_ns(), time.monotonic()
        is_debugging = order.debug_rank is not None
        if is_debugging:
            self._loop.give_terminal()
        run = self._chain.start_run(order)
        chain, loop = self._chain, self._loop
        ended = None

        def is_over() -> bool:
            nonlocal ended
            ended = ended or chain.run_ended()
            return ended is not None

        def is_told() -> bool:
            return is_over() or any(isinstance(event, Finished) for event in run.events)

        self._has_news = True
        # A debugger has the keys.
        is_disturbed = self._is_disturbed if not is_debugging else lambda: False
        loop.wait(lambda: is_told() or is_disturbed())
        is_whole = is_told()
        if is_whole:
            self._watch_all(self._known.learn(run.events, order), began_ns)
            self._unseen.clear()
            self._tell(run.events, why, time.monotonic() - began_s)
            # Its threads, or exit handlers, may never end.
            loop.wait(lambda: is_over() or is_disturbed())
        if not is_over():
            chain.stop_run()
            loop.wait(is_over)
        loop.take_terminal()
        if not is_whole:
            self._watch_all(self._known.learn_imports(run.events), began_ns)
            _say("watch: the run was stopped")

    def _watch_all(self, paths: Collection[str], began_ns: int) -> None:
        self._loop.changed |= self._files.add(paths, began_ns)

    def _tell(self, events: Sequence[object], why: str, elapsed_s: float) -> None:
        worst: dict[str, str] = {}
        for event in events:
            if isinstance(event, Reported) and worst.get(event.node_id) != "failed":
                worst[event.node_id] = event.outcome
        outcomes = list(worst.values())
        counts = [f"{count} {word}" for word in ("failed", "passed", "skipped") if (count := outcomes.count(word))]
        codes = [event.code for event in events if isinstance(event, Finished)]
        self._code = int(codes[-1:] not in ([0], [_NO_TESTS]))
        if not codes:
            counts.append("the run ended before its session did")
        _say(f"watch: {', '.join(counts) or 'no test ran'} in {elapsed_s:.2f} s {why}")
        if earlier := [node_id for node_id in self._known.failed if node_id not in worst]:
            _say(f"watch: {len(earlier)} failed earlier: {_names(earlier)}")


def _names(paths: Sequence[str]) -> str:
    shown = [os.path.relpath(path) if os.path.isabs(path) else path for path in paths[:_NAMED]]
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(shown) + more


def _say(text: str) -> None:
    # The terminal may be gone, which SIGHUP tells, too.
    try:
        print(text, flush=True)
    except OSError:
        signal.raise_signal(signal.SIGHUP)
