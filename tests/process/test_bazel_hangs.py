"""Hangs in the runner itself, not on ranks: a target still ends before Bazel's timeout, with stacks and results.

These tests mostly wait for timeouts that must be long enough for a busy machine, so all hanging targets run at once.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from dist_testing.core.events.event import CaseStarted
from dist_testing.event_file import read_events
from tests.support.bell import Bell
from tests.support.children import Ended, Target, assert_no_folder_left
from tests.support.starter import Starter

# Timeouts in seconds that Bazel would set, also for the child; the short one is for targets with no test after the
# hang.
_TIMEOUT_S = 30
_SHORT_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class Hang:
    """A target that hangs.

    Attributes:
        sources: Its files.
        timeout_s: Bazel's timeout, in seconds.
        srcs: The names of the files that are in `srcs`; empty for all.
    """

    sources: Mapping[str, str]
    timeout_s: int = _TIMEOUT_S
    srcs: Sequence[str] = ()


_WAITS = """
    import threading
    import unittest
    import pytest

    def waits():
        threading.Event().wait()

    @pytest.mark.distributed
    def test_before(world): ...
"""
_HANGING_TESTS = """

    def test_function():
        threading.Thread(target=waits, name="a helper", daemon=True).start()
        waits()

    class TestUnittest(unittest.TestCase):
        def test_method(self):
            waits()
"""
_HANGING_FIXTURES = """

    @pytest.fixture
    def hanging_setup():
        waits()

    @pytest.fixture
    def hanging_teardown():
        yield
        waits()

    def test_setup(hanging_setup): ...

    def test_teardown(hanging_teardown): ...
"""
_AFTER = """

    def test_after(): ...

    @pytest.mark.distributed
    def test_distributed_after(world): ...
"""


_SWALLOWING = """
    import threading
    import unittest
    import pytest

    def test_swallows():
        try:
            threading.Event().wait()
        except BaseException:
            pass

    @pytest.mark.xfail(reason="known")
    def test_expected():
        threading.Event().wait()

    class TestUnittest(unittest.TestCase):
        @unittest.expectedFailure
        def test_expected_method(self):
            threading.Event().wait()

    def test_after(): ...
"""
_IN_C = """
    import ctypes
    import pytest

    @pytest.mark.distributed
    def test_before(world): ...

    def test_fails():
        assert not "planted"

    def test_locks_twice():
        library = ctypes.LIBRARY(None)
        mutex = ctypes.create_string_buffer(64)
        library.pthread_mutex_lock(mutex)
        library.pthread_mutex_lock(mutex)

    def test_after(): ...
"""
_DISTRIBUTED = """
    import threading
    import pytest

    @pytest.mark.distributed
    def test_hangs(world):
        threading.Event().wait()

    def test_plain_hangs():
        threading.Event().wait()

    def test_plain(): ...
"""
_THREADS = """
    import threading
    from dist_testing.threaded.spawn_threads import spawn_threads_and_init_comms

    def test_ranks():
        @spawn_threads_and_init_comms(world_size=2)
        def ranks():
            threading.Event().wait()

        ranks()

    def test_after(): ...
"""
_IMPORTS = """
    import threading

    def waits():
        threading.Event().wait()

    waits()
"""
_FINE = """
    def test_fine():
        pass
"""
_HANGS = {
    "tests": Hang({"test_cases.py": _WAITS + _HANGING_TESTS + _AFTER}),
    "fixtures": Hang({"test_cases.py": _WAITS + _HANGING_FIXTURES + _AFTER}),
    "swallowed": Hang({"test_cases.py": _SWALLOWING}),
    "without the lock": Hang({"test_cases.py": _IN_C.replace("LIBRARY", "CDLL")}, _SHORT_TIMEOUT_S),
    "with the lock": Hang({"test_cases.py": _IN_C.replace("LIBRARY", "PyDLL")}, _SHORT_TIMEOUT_S),
    "test_cases.py": Hang({"test_fine.py": _FINE, "test_cases.py": _IMPORTS}, _SHORT_TIMEOUT_S),
    "conftest.py": Hang({"test_fine.py": _FINE, "conftest.py": _IMPORTS}, _SHORT_TIMEOUT_S, srcs=("test_fine.py",)),
    "distributed": Hang({"test_cases.py": _DISTRIBUTED}),
    "threads": Hang({"test_cases.py": _THREADS}),
}


@pytest.fixture(scope="module")
def hung(starters: Starter, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Target, Ended]]:
    """The hanging targets and how each ended: before Bazel's timeout, and with no process left."""
    running = []
    for name, hang in _HANGS.items():
        spec = {"srcs": [f"//pkg:{source}" for source in hang.srcs or hang.sources]}
        target = Target(tmp_path_factory.mktemp("hang"), hang.sources, spec=spec)
        child = target.start(starters, env={"TEST_TIMEOUT": str(hang.timeout_s)})
        running.append((time.monotonic() + hang.timeout_s, name, target, child))
    ended = {}
    for end_s, name, target, child in sorted(running, key=lambda one: one[0]):
        code = child.wait(max(end_s - time.monotonic(), 0.0))
        if code >= 0:
            assert_no_folder_left(target.folder)
        ended[name] = (target, Ended(code, child.log))
    starters.wait_nothing_left(_TIMEOUT_S)
    return ended


@pytest.mark.parametrize(
    ("name", "phases", "outcome"),
    [
        ("tests", {"function": "call", "method": "call"}, "failure"),
        ("fixtures", {"setup": "setup", "teardown": "teardown"}, "error"),
    ],
    ids=["tests", "fixtures"],
)
def test_plain_tests_that_hang_fail_with_their_stacks_and_later_ones_run(
    hung: dict[str, tuple[Target, Ended]], name: str, phases: dict[str, str], outcome: str
) -> None:
    """If this fails, a plain test that waits for ever costs the results of all tests of its target."""
    target, ended = hung[name]
    assert ended.code == pytest.ExitCode.TESTS_FAILED, ended.log
    results = target.check(
        passed="test_before test_after test_distributed_after", **{outcome: " ".join(f"test_{case}" for case in phases)}
    )
    for case, phase in phases.items():
        result = results[f"test_{case}"]
        assert f"its {phase} had not ended after" in result.message
        assert result.text in ended.log
        assert "in waits" in result.text
        assert "_pytest" not in result.text, "frames of pytest do not help the user"
    if name == "tests":
        assert "in test_function" in results["test_function"].text
        assert "Thread 'a helper'" in results["test_function"].text
    assert "Traceback" not in ended.log


def test_hang_is_not_an_expected_failure_and_cannot_be_swallowed(hung: dict[str, tuple[Target, Ended]]) -> None:
    """If this fails, a test that catches the exception, or expects a failure, turns a hang into a pass."""
    target, ended = hung["swallowed"]
    assert ended.code == pytest.ExitCode.TESTS_FAILED, ended.log
    target.check(failure="test_swallows test_expected test_expected_method", passed="test_after")


@pytest.mark.parametrize("name", ["without the lock", "with the lock"])
def test_c_code_that_never_returns_ends_the_run_with_its_stacks(
    hung: dict[str, tuple[Target, Ended]], name: str
) -> None:
    """If this fails, C code that never returns hides all results.

    An exception cannot interrupt it, and no other thread runs while it holds the interpreter's lock.
    """
    target, ended = hung[name]
    assert ended.code == -signal.SIGKILL, ended.log
    results = target.check(passed="test_before", failure="test_fails", error="test_locks_twice")
    assert "planted" in results["test_fails"].text
    assert "the target's time was over" in results["test_locks_twice"].message
    for text in (ended.log, results["test_locks_twice"].text):
        assert "in test_locks_twice" in text
    assert target.suite_properties()["not_run"] == "1"
    began = [
        event.nodeid for event in read_events(target.outputs / "events.jsonl.gz") if isinstance(event, CaseStarted)
    ]
    assert began[-1].endswith("::test_locks_twice")


@pytest.mark.parametrize(
    ("name", "said"),
    [("test_cases.py", "pkg/test_cases.py was being collected"), ("conftest.py", "a conftest.py was being imported")],
)
def test_import_that_hangs_is_named_with_its_stack(hung: dict[str, tuple[Target, Ended]], name: str, said: str) -> None:
    """If this fails, a target in which nothing ran gives no reason."""
    target, ended = hung[name]
    assert ended.code not in (0, None), ended.log
    (result,) = target.xml().values()
    assert result.outcome == "error"
    assert f"the target's time was over while {said}" in result.message
    for text in (ended.log, result.text):
        assert f'{name}", line 5 in waits' in text
    assert "Traceback" not in ended.log


@pytest.mark.parametrize("place", ["import", "test"])
def test_interrupted_runner_reports_where_it_was(starter: Starter, tmp_path: Path, place: str) -> None:
    """If this fails, a user who cancels a build that seems to hang does not learn what it was doing."""
    source = f"""
        import threading
        from tests.support.bell import ring

        def waits():
            ring("waits")
            threading.Event().wait()

        def test_waits():
            waits()

        if {place == "import"}:
            waits()
    """
    target = Target(tmp_path, {"test_cases.py": source})
    with Bell(tmp_path) as bell:
        child = target.start(starter, env=bell.env)
        bell.wait(1, child)
    child.send_group_signal(signal.SIGTERM)
    assert child.wait() == pytest.ExitCode.INTERRUPTED, child.log
    starter.wait_nothing_left(_TIMEOUT_S)
    (result,) = target.xml().values()
    assert result.outcome == "error"
    assert "the runner got SIGTERM (15)" in result.message
    for text in (child.log, result.text):
        assert "in waits" in text
    assert "Traceback" not in child.log


def test_distributed_hang_leaves_time_for_plain_tests(hung: dict[str, tuple[Target, Ended]]) -> None:
    """If this fails, a hang on the ranks takes the time of the plain tests after it."""
    target, ended = hung["distributed"]
    assert ended.code == pytest.ExitCode.TESTS_FAILED, ended.log
    target.check(failure="test_hangs test_plain_hangs", passed="test_plain")
    assert "stacks of rank(s) 0, 1:" in ended.log
    assert target.suite_properties() == {}


def test_alarms_and_children_belong_to_the_test(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the runner's time limit disturbs a test with its own timer, or a data loader that forks."""
    source = """
        import os
        import signal
        import threading
        import warnings

        def test_alarm():
            rang = threading.Event()
            signal.signal(signal.SIGALRM, lambda *_: rang.set())
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            assert rang.wait(10)
            assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)

        def test_fork():
            assert threading.active_count() == 1
            with warnings.catch_warnings():
                # Python 3.12 warns about a fork in a process with a second thread of any kind.
                warnings.simplefilter("error")
                child = os.fork()
            if child == 0:
                # The runner guards its own end, and not that of its children.
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    """
    target = Target(tmp_path, {"test_cases.py": source})
    ended = target.run(starter, env={"TEST_TIMEOUT": str(_TIMEOUT_S)})
    assert ended.code == 0, ended.log


def test_hanging_threads_of_a_plain_test_are_reported_by_rank(hung: dict[str, tuple[Target, Ended]]) -> None:
    """If this fails, the report does not say which thread rank of `spawn_threads_and_init_comms` waits."""
    target, ended = hung["threads"]
    assert ended.code == pytest.ExitCode.TESTS_FAILED, ended.log
    results = target.check(failure="test_ranks", passed="test_after")
    assert "ranks 0, 1 were still running at the deadline" in results["test_ranks"].message
    assert "stacks of rank(s) 0, 1:" in ended.log
