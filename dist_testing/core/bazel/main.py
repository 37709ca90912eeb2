"""Runs a target under Bazel: reads the spec and the test protocol, runs pytest, returns the result to Bazel."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dist_testing.core.bazel.banner import Banner
from dist_testing.core.bazel.conclusion import FAILED, Conclusion, banner
from dist_testing.core.bazel.protocol import Protocol, read_protocol
from dist_testing.core.bazel.search_path import export_search_path
from dist_testing.core.bazel.watch import Watch
from dist_testing.core.engine.interrupts import ExitGuard, ignore_termination, raise_on_termination
from dist_testing.core.engine.rank_env import show_cpp_stacks
from dist_testing.core.engine.run_events import run_started
from dist_testing.core.events.event import RunEnded
from dist_testing.core.events.stream import EventStream
from dist_testing.core.ground.add_ons import add_on_named, call_parts
from dist_testing.core.ground.budget import Budget
from dist_testing.core.ground.errors import DistTestingError, InterruptedRunError, SpecError, UsageError
from dist_testing.core.ground.runfiles import declared_file, find_runfiles, locations
from dist_testing.core.ground.spec import SPEC_VARIABLE, Spec, program_of, read_spec
from dist_testing.core.process import collector
from dist_testing.core.process.stacks import has_sanitizer

# The build rules set these if a target has the file: its runfiles path, as `$(rlocationpath)` writes it.
_TIMINGS_VARIABLE = "DIST_TESTING_TIMINGS"
# Runfiles paths of the source files, if `srcs` is a select(): then the spec names a target that stands for them.
_SOURCES_VARIABLE = "DIST_TESTING_SPEC_SRCS"
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
# The option of the pytest front end, which is imported later.
_WATCH_OPTION = "--dist-watch"
# A label as the rules write it: `//package:name`, after the canonical name of another repository.
_LABEL = re.compile(r"(?:@{1,2}(?P<repository>[^@/]+))?//(?P<package>[^:]*):(?P<name>.+)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the target that Bazel started. The default arguments, options for pytest, are those of the command line.

    Returns:
        0 if every case passed or was skipped, and at least one was collected.
    """
    guard = ExitGuard(FAILED)
    _print_anything()
    try:
        protocol = read_protocol(os.environ)
        with protocol.not_over_yet():
            raise_on_termination()
            given = list(sys.argv[1:] if arguments is None else arguments)
            if SPEC_VARIABLE not in os.environ and "TEST_TARGET" not in os.environ:
                start = add_on_named("direct", "a target that Bazel has not started").load("start")
                given = start(os.environ, given)
            export_search_path(os.environ, sys.path)
            target = _find_target()
            _refuse_rank(target.spec, given)
            if _WATCH_OPTION in given and target.spec.program_exits is None:
                run = add_on_named("watch", f"{target.spec.target}: {_WATCH_OPTION}").load("target")
                return int(run(target.spec, target.files, target.repositories, given))
            let_threads_be = _limit_fork_server_threads()
            show_cpp_stacks(os.environ)
            code, has_run_tests = _run(target, protocol, given, guard, let_threads_be)
            guard.conclude(code)
    except (DistTestingError, InterruptedRunError) as error:
        print(error, file=sys.stderr)
        return guard.conclude(FAILED)
    # What a test has left behind may fail at the end of its process. Coverage and sanitizers report then.
    if not (has_run_tests or protocol.coverage is not None or has_sanitizer()):
        guard.end_after_handlers()
    return code


def _refuse_rank(spec: Spec, arguments: Sequence[str]) -> None:
    """Refuse what only a started program has, `--rank`, in a test that Bazel runs: it has no terminal."""
    asked = [text for text in arguments if text.startswith("--rank=")]
    if asked and spec.program_exits is None:
        raise UsageError(
            f"{spec.target}: {asked[0]} in a run by Bazel, which gives a test no terminal.\n"
            "`bazel test` and `bazel run` both start a test in the environment of tests.\n"
            f"Start its program: bazel build {spec.target} && {program_of(spec.target)} {asked[0]}"
        )


@dataclass(frozen=True, slots=True)
class _Target:
    spec: Spec
    files: Sequence[str]
    # Repositories of the files, as runfiles name them; "" for the main repository if TEST_WORKSPACE is not set.
    repositories: frozenset[str]
    timings: Path | None
    rlocation: Callable[[str], str | None]


def _find_target() -> _Target:
    text = os.environ.get(SPEC_VARIABLE)
    rlocation = find_runfiles()
    if not text or rlocation is None:
        raise SpecError(
            f"{SPEC_VARIABLE}={text!r}, runfiles {'found' if rlocation else 'not found'}: no target to run.\n"
            "This is the main program of dist_py_test targets, which the build rules set up.\n"
            "Use dist_py_test in a BUILD file; without Bazel, run the test file with pytest."
        )
    spec = read_spec(text)
    sources = _selected_sources(spec, rlocation)
    sources = sources or [_source(spec, label, rlocation) for label in spec.srcs]
    return _Target(
        spec,
        [path for _, path in sources],
        frozenset(repository for repository, _ in sources),
        declared_file(_TIMINGS_VARIABLE),
        rlocation,
    )


def _selected_sources(spec: Spec, rlocation: Callable[[str], str | None]) -> list[tuple[str, str]]:
    """Return the repository and the path of each source file, if a `select()` chose them; else an empty list."""
    found = []
    for location in locations(_SOURCES_VARIABLE):
        path = rlocation(location)
        if path is None or not os.path.exists(path):
            raise SpecError(
                f"{spec.target}: the source {location} is not in the runfiles (looked at {path}).\n"
                "The runfiles belong to another build, or the file was removed after it.\n"
                "Build the target again."
            )
        found.append((location.partition("/")[0], path))
    return found


def _source(spec: Spec, label: str, rlocation: Callable[[str], str | None]) -> tuple[str, str]:
    """Return the repository and the path of a source file."""
    match = _LABEL.fullmatch(label)
    if match is None:
        raise SpecError(
            f"{SPEC_VARIABLE} says srcs has {label!r}; expected a label, such as //package:test_one.py.\n"
            "Build rules of another version of dist_testing wrote it.\n"
            "Build the target again; if the error stays, use the rules and the Python package of the same version."
        )
    repository = match["repository"] or os.environ.get("TEST_WORKSPACE", "")
    path = rlocation(os.path.normpath(os.path.join(repository, match["package"], match["name"])))
    if path is None or not os.path.exists(path):
        raise SpecError(
            f"{spec.target}: the source {label} is not in the runfiles (looked at {path}).\n"
            "The label names a target that makes files of other names, or the runfiles belong to another build.\n"
            "Name the files themselves in srcs, and build the target again."
        )
    return repository, path


def _print_anything() -> None:
    # A skip reason or a name may contain characters that the encoding lacks. Printing them must not end the run.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _limit_fork_server_threads() -> Callable[[], None]:
    """Let OpenBLAS start no threads while the fork server starts.

    Call it before the test modules load a numeric library. The fork server computes nothing, and each thread that such
    a library starts at import makes a fork less safe.

    Returns:
        A function that removes the limit, so that ranks and tests use the user's value, or their share.
    """
    if _BLAS_THREADS in os.environ:
        return lambda: None
    os.environ[_BLAS_THREADS] = "1"

    def remove_limit() -> None:
        # An import may have set another value.
        if os.environ.get(_BLAS_THREADS) == "1":
            del os.environ[_BLAS_THREADS]

    return remove_limit


def _run(
    target: _Target,
    protocol: Protocol,
    arguments: Sequence[str],
    guard: ExitGuard,
    let_threads_be: Callable[[], None],
) -> tuple[int, bool]:
    """Return the exit code, and whether a test has run in this process."""
    collector.pause()
    # Imported late, so that the error for a missing target comes at once.
    import pytest

    from dist_testing.core.bazel.bazel_session import BazelSession
    from dist_testing.core.bazel.failures_last import FailuresLast
    from dist_testing.core.bazel.pytest_config import program_session, test_session
    from dist_testing.core.pytest import plugin as pytest_plugin

    spec = target.spec
    head = Banner(sys.stdout, banner(spec, protocol))
    with head.in_place():
        conclusion = Conclusion(spec, protocol, head)
        shares = Budget.starting_now(protocol.time_left_s())
        watch = Watch()
        events = EventStream()
        events.warn = conclusion.warn_at_end
        events.subscribe(conclusion, *Conclusion.kinds, name="the results of the run", is_essential=True)
        watchdog = next((made for _, made in call_parts("watchdog", conclusion, events, shares.stuck_s)), None)
        kept = [made for _, made in call_parts("kept_events", protocol.outputs, events, conclusion.warn)]
        if closers := list(filter(None, kept)):
            events.emit(run_started(spec))
        if watchdog is not None:
            watch.remind = watchdog.remind
        finish_coverage = _start_coverage(target, protocol, conclusion)
        session = BazelSession(
            spec, protocol, head, conclusion, events, shares=shares, watch=watch, timings=target.timings
        )

        def on_collected() -> None:
            let_threads_be()
            collector.resume()

        session.on_collected = on_collected
        if spec.program_exits is None:
            command = test_session(target.files, target.repositories, arguments, fail_fast=protocol.fail_fast)
            plugins: list[object] = [session, FailuresLast(), pytest_plugin]
        else:
            command, program = program_session(spec, target.files[0], target.repositories, arguments)
            plugins = [session, FailuresLast(), program, pytest_plugin]
        code = FAILED
        try:
            code = int(pytest.main(command, plugins=plugins))
        except SystemExit as error:
            conclusion.give_up(f"a conftest.py or a plugin has called sys.exit({error.code!r})")
        except InterruptedRunError as error:
            conclusion.where = watch.interrupted_at
            conclusion.give_up(str(error))
        finally:
            # The rest takes less time than Bazel waits after its signal.
            ignore_termination()
            conclusion.interruption = guard.cause or conclusion.interruption
            conclusion.where = watch.interrupted_at
            with _warning(conclusion):
                finish_coverage()
            try:
                code = conclusion.conclude(code)
            finally:
                if watchdog is not None:
                    watchdog.stop()
                events.emit(RunEnded(time.monotonic(), code))
                for close in closers:
                    close()
    return code, session.has_run_tests


def _start_coverage(target: _Target, protocol: Protocol, conclusion: Conclusion) -> Callable[[], None]:
    """Start to measure if Bazel wants it, and return what writes the result."""
    finish: Callable[[], None] | None = None
    if protocol.coverage is not None:
        with _warning(conclusion):
            start = add_on_named("coverage", "`bazel coverage`").load("bazel")
            finish = start(protocol.coverage, target.rlocation, os.environ.get("TEST_WORKSPACE", ""))
    return finish or (lambda: None)


@contextlib.contextmanager
def _warning(conclusion: Conclusion) -> Iterator[None]:
    """Turn an error of the library into a warning: the tests can still pass."""
    try:
        yield
    except DistTestingError as error:
        conclusion.warn(str(error))
