"""Runs a target under Bazel: reads the spec and the test protocol, runs pytest, returns the result to Bazel."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dist_testing.core.bazel.conclusion import FAILED, Banner, Conclusion, banner
from dist_testing.core.bazel.protocol import Protocol, read_protocol
from dist_testing.core.bazel.watch import Watch
from dist_testing.core.engine.interrupts import ExitGuard, ignore_termination, raise_on_termination, received
from dist_testing.core.engine.rank_env import show_cpp_stacks
from dist_testing.core.events.event import EventStream, RunEnded, run_started
from dist_testing.core.ground.add_ons import add_on_named, call_parts
from dist_testing.core.ground.budget import Budget
from dist_testing.core.ground.errors import DistTestingError, InterruptedRunError, SpecError, UsageError
from dist_testing.core.ground.runfiles import declared_file, find_runfiles, locations
from dist_testing.core.ground.spec import SPEC_VARIABLE, Spec, program_of, read_spec
from dist_testing.core.process import collector
from dist_testing.core.process.stacks import has_sanitizer

# $DIST_TESTING_TIMINGS (internal): runfiles path of the target's file of timings, as `$(rlocationpath)` writes it.
_TIMINGS_VARIABLE = "DIST_TESTING_TIMINGS"
# $DIST_TESTING_SPEC_SRCS (internal): runfiles paths of the source files if `srcs` is a select(): then the spec names a
# target that stands for them.
_SOURCES_VARIABLE = "DIST_TESTING_SPEC_SRCS"
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
# The option of the pytest front end, which is imported later.
_WATCH_OPTION = "--dist-watch"
# A label as the rules write it: `//package:name`, after the canonical name of another repository.
_LABEL = re.compile(r"(?:@{1,2}(?P<repository>[^@/]+))?//(?P<package>[^:]*):(?P<name>.+)")
# Cause and way out, if a source is not in the runfiles.
_SELECTED_GONE = "The runfiles belong to another build, or the file was removed after it.\nBuild the target again."
_LABELLED_GONE = (
    "The label names a target that makes files of other names, or the runfiles belong to another build.\n"
    "Name the files themselves in srcs, and build the target again."
)


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
            # $TEST_TARGET (Bazel): label of the target. If it is not set, Bazel has not started the program.
            if SPEC_VARIABLE not in os.environ and "TEST_TARGET" not in os.environ:
                start = add_on_named("direct", "a target that Bazel has not started").load("start")
                given = start(os.environ, given)
            export_search_path(os.environ, sys.path)
            target = _find_target()
            _refuse_terminal(target.spec, given)
            if _WATCH_OPTION in given and target.spec.own_session is None:
                run = add_on_named("watch", f"{target.spec.target}: {_WATCH_OPTION}").load("target")
                return int(run(target.spec, target.files, target.repositories, given))
            show_cpp_stacks(os.environ)
            code, has_run_tests = _run(target, protocol, given, guard)
            guard.conclude(code)
    except (DistTestingError, InterruptedRunError) as error:
        print(error, file=sys.stderr)
        return guard.conclude(FAILED)
    # What a test has left behind may fail at the end of its process. Coverage and sanitizers report then.
    if not (has_run_tests or protocol.coverage is not None or has_sanitizer()):
        guard.end_after_handlers()
    return code


def export_search_path(environ: MutableMapping[str, str], search_path: Sequence[str]) -> None:
    """Put the entries of this process's `sys.path` that a new interpreter would not have into PYTHONPATH.

    Older rules_python exports them before this process starts. From 1.7 on it changes `sys.path` of this process alone.
    A test that starts `sys.executable`, such as one that runs `python -m torch.distributed.run`, then finds no package.
    """
    own = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    own |= {os.path.join(path, "lib-dynload") for path in own}
    given = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    main_folder = os.path.dirname(os.path.abspath(sys.argv[0]))
    more = [
        path
        for path in search_path
        if os.path.isdir(path) and os.path.realpath(path) not in own and path not in given and path != main_folder
    ]
    if more:
        environ["PYTHONPATH"] = os.pathsep.join([*more, *given])


def _refuse_terminal(spec: Spec, arguments: Sequence[str]) -> None:
    """Refuse the options of a started program, which has a terminal, in a test that Bazel runs."""
    asked = [text for text in arguments if text.startswith(("--rank=", _WATCH_OPTION))]
    if asked and spec.own_session is None and "TEST_TARGET" in os.environ:
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
    files, repositories = [], set()
    selected = locations(_SOURCES_VARIABLE)
    for source in selected or spec.srcs:
        repository, location = (source.partition("/")[0], source) if selected else _location(source)
        path = rlocation(location)
        if path is None or not os.path.exists(path):
            raise SpecError(
                f"{spec.target}: the source {source} is not in the runfiles (looked at {path}).\n"
                f"{_SELECTED_GONE if selected else _LABELLED_GONE}"
            )
        files.append(path)
        repositories.add(repository)
    return _Target(spec, files, frozenset(repositories), declared_file(_TIMINGS_VARIABLE), rlocation)


def _location(label: str) -> tuple[str, str]:
    """Return the repository of a source file, and the file's path in the runfiles."""
    match = _LABEL.fullmatch(label)
    if match is None:
        raise SpecError(
            f"{SPEC_VARIABLE} says srcs has {label!r}; expected a label, such as //package:test_one.py.\n"
            "Build rules of another version of dist_testing wrote it.\n"
            "Build the target again; if the error stays, use the rules and the Python package of the same version."
        )
    # $TEST_WORKSPACE (Bazel): name of the main repository in the runfiles.
    repository = match["repository"] or os.environ.get("TEST_WORKSPACE", "")
    return repository, os.path.normpath(os.path.join(repository, match["package"], match["name"]))


def _print_anything() -> None:
    # A skip reason or a name may contain characters that the encoding lacks. Printing them must not end the run.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _begin_imports() -> Callable[[], None]:
    """Let the garbage collector rest, and OpenBLAS start no threads, until the fork server runs.

    Call it before the test modules load a numeric library. The fork server computes nothing, and each thread that such
    a library starts at import makes a fork less safe.

    Returns:
        What ends this: ranks and tests use the user's number of threads, or their share.
    """
    collector.pause()
    is_users = _BLAS_THREADS in os.environ
    os.environ.setdefault(_BLAS_THREADS, "1")

    def end() -> None:
        # An import may have set another value.
        if not is_users and os.environ.get(_BLAS_THREADS) == "1":
            del os.environ[_BLAS_THREADS]
        collector.resume()

    return end


def _run(target: _Target, protocol: Protocol, arguments: Sequence[str], guard: ExitGuard) -> tuple[int, bool]:
    """Return the exit code, and whether a test has run in this process."""
    end_imports = _begin_imports()
    # Imported late, so that the error for a missing target comes at once.
    import pytest

    from dist_testing.core.bazel.bazel_session import BazelSession, FailuresLast
    from dist_testing.core.bazel.pytest_config import add_on_session, test_session
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
        session = BazelSession(spec, protocol, head, conclusion, events, shares, watch, target.timings, end_imports)
        plugins: list[object] = [session, FailuresLast(), pytest_plugin]
        if (add_on := spec.own_session) is None:
            command = test_session(target.files, target.repositories, arguments, fail_fast=protocol.fail_fast)
        else:
            command, plugin = add_on_session(add_on, spec, target.files[0], target.repositories, arguments)
            # Before the library's own, as it asks.
            plugins.insert(2, plugin)
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
            conclusion.interruption = guard.cause or conclusion.interruption or received()
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
            finish = start(*protocol.coverage, target.rlocation, os.environ.get("TEST_WORKSPACE", ""))
    return finish or (lambda: None)


@contextlib.contextmanager
def _warning(conclusion: Conclusion) -> Iterator[None]:
    """Turn an error of the library into a warning: the tests can still pass."""
    try:
        yield
    except DistTestingError as error:
        conclusion.warn(str(error))
