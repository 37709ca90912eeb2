"""The results, files and exit code that Bazel gets at the end of a run, however it ends, with texts of any kind."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.support.bell import Bell
from tests.support.children import Bazel, Target, run_cases, run_pytest, write_file
from tests.support.starter import Starter

_HOLDING = """
    import threading
    import pytest
    from tests.support.bell import ring

    @pytest.mark.distributed
    def test_before(world): ...

    @pytest.mark.distributed
    def test_hangs(world):
        ring("hangs")
        threading.Event().wait()

    @pytest.mark.distributed
    @pytest.mark.parametrize("number", range(3))
    def test_after(world, number): ...
"""


def test_interrupted_run_names_its_current_case(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the XML of a run that Bazel timed out looks like a pass of all its cases."""
    target = Target(tmp_path, {"test_cases.py": _HOLDING})
    with Bell(tmp_path) as bell:
        child = target.start(starter, env=bell.env)
        bell.wait(2, child)
    child.send_group_signal(signal.SIGTERM)
    assert child.wait() == pytest.ExitCode.INTERRUPTED, child.log
    results = target.check(passed="test_before", error="test_hangs")
    assert "the runner got SIGTERM (15)" in results["test_hangs"].message
    assert target.suite_properties() == {"interrupted": "the runner got SIGTERM (15)", "not_run": "3"}
    assert not target.premature_exit_file.exists()


def test_ranks_that_never_become_ready_end_within_the_runs_time(bazel: Bazel) -> None:
    """If this fails, Bazel ends the runner before it reports an import that hangs on fresh interpreters."""
    source = f"""
        import os
        import threading
        import pytest

        try:
            os.close(os.open({str(bazel.folder / "imported")!r}, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            threading.Event().wait()

        @pytest.mark.distributed(isolation="spawn")
        def test_starts(world): ...
    """
    target, ended = bazel.run(source, code=pytest.ExitCode.TESTS_FAILED, env={"TEST_TIMEOUT": "20"}, limit_s=20)
    target.check(failure="test_starts")
    assert "ranks 0, 1 were still running at the deadline (0, 1 in import)" in ended.log
    assert re.search(r"test_cases\.py\", line \d+ in <module>", ended.log)


_NEVER = "def test_never(): ...\n"
_OUTSIDE = "the run failed outside its cases (pytest's exit code"
_EXITS_AT_IMPORT = f"import os\n\nos._exit(0)\n\n{_NEVER}"
_EXITS_IN_A_PLAIN_TEST = """
    import os
    import pytest

    @pytest.mark.distributed
    def test_before(world): ...

    def test_exits():
        os._exit(0)

    def test_never(): ...
"""
_EXITS_IN_A_THREAD = """
    import os
    import threading

    def test_exits():
        threading.Thread(target=os._exit, args=(0,)).start()
        threading.Event().wait()
"""
_ENDS_THE_SESSION = """
    import pytest

    def test_ends_everything():
        pytest.exit("enough", returncode=0)

    def test_never():
        raise ValueError
"""
_SWALLOW = """
import os
import signal

def swallow():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except BaseException:
        pass
"""
_AT_IMPORT = f"{_SWALLOW}\nswallow()\n\n{_NEVER}"
_IN_A_TEST = f"{_SWALLOW}\ndef test_swallows():\n    swallow()\n"
_AT_THE_END = f"{_SWALLOW}\ndef pytest_sessionfinish():\n    swallow()\n"


@pytest.mark.parametrize(
    ("files", "options", "code", "outcomes", "said", "not_run"),
    [
        ({"conftest.py": "import sys\n\nsys.exit(0)\n"}, (), 1, ["error"], "called sys.exit(0)", "0"),
        ({"conftest.py": "import sys\n\nsys.exit(7)\n"}, (), 1, ["error"], "called sys.exit(7)", "0"),
        ({"test_cases.py": "import sys\n\nsys.exit(0)\n"}, (), 3, ["error"], f"{_OUTSIDE} 3)", None),
        ({"test_cases.py": _EXITS_AT_IMPORT}, (), 2, ["error"], "has called os._exit(0) in the runner", "0"),
        ({"test_cases.py": _EXITS_IN_A_PLAIN_TEST}, (), 2, ["error", "passed"], "os._exit(0) in the runner", "1"),
        ({"test_cases.py": _EXITS_IN_A_THREAD}, (), 2, ["error"], "os._exit(0) in the runner", "0"),
        ({"test_cases.py": _ENDS_THE_SESSION}, (), 1, ["error", "error"], "ended before its cases did: enough", "1"),
        # As an import in native code does, which clears the error.
        ({"test_cases.py": _AT_IMPORT}, (), 2, ["error"], "the runner got SIGTERM (15)", "1"),
        ({"test_cases.py": _IN_A_TEST}, (), 2, ["error"], "the runner got SIGTERM (15)", "0"),
        ({"conftest.py": _AT_THE_END}, (), 1, ["error", "passed"], "the runner got SIGTERM (15)", "0"),
        # Dashboards would see an empty file, like that of a target without tests.
        ({}, ("--dist-world-size=0",), 4, ["error"], f"{_OUTSIDE} 4)", None),
    ],
    ids=[
        "conftest",
        "conftest, 7",
        "import",
        "_exit",
        "_exit in a test",
        "_exit in a thread",
        "pytest.exit",
        "lost at import",
        "lost in a test",
        "lost at the end",
        "option",
    ],
)
def test_run_that_ends_early_is_not_a_pass(
    bazel: Bazel,
    files: dict[str, str],
    options: tuple[str, ...],
    code: int,
    outcomes: list[str],
    said: str,
    not_run: str | None,
) -> None:
    """If this fails, a call that ends the runner, also with 0, passes all cases that it keeps from running.

    Bazel 7 ignores the premature-exit file.
    """
    spec = {"srcs": ["//pkg:test_cases.py"]}
    target, ended = bazel.run({"test_cases.py": _NEVER, **files}, *options, code=code, spec=spec)
    results = target.xml().values()
    assert sorted(result.outcome for result in results) == outcomes
    assert any(said in result.message for result in results)
    assert all(text in ended.log for text in (said, *options) if _OUTSIDE not in text)
    assert target.suite_properties().get("not_run") == not_run
    assert "conftest.py" not in files or "Traceback" not in ended.log


_AT_EXIT = """
    import atexit
    import os
    import sys
    import pytest

    RUNNER = os.getpid()

    def say(text):
        if os.getpid() == RUNNER:
            sys.__stderr__.write(text + "\\n")

    class Last:
        def __del__(self, write=os.write):
            write(2, b"taken apart")

    LAST = Last()
    atexit.register(say, "handler called")

    @pytest.mark.distributed
    def test_on_ranks(world):
        assert RIGHT
"""
_IN_RUNNER = """

    def test_in_runner(): ...
"""


@pytest.mark.parametrize("is_right", [True, False])
@pytest.mark.parametrize("here", ["", _IN_RUNNER], ids=["ranks only", "a test in the runner"])
def test_exit_handlers_are_called_before_the_end(bazel: Bazel, here: str, is_right: bool) -> None:
    """A runner that has run no test saves the time to take modules apart; the verdict is the exit code in any case."""
    _, ended = bazel.run(_AT_EXIT.replace("RIGHT", str(is_right)) + here, code=0 if is_right else 1)
    assert ended.log.count("handler called") == 1, ended.log
    assert ("taken apart" in ended.log) is bool(here), ended.log


@pytest.mark.parametrize(("is_right", "status", "code"), [(False, 0, 1), (True, 0, 0), (True, 3, 3)])
def test_exit_handler_cannot_turn_a_failure_into_a_pass(bazel: Bazel, is_right: bool, status: int, code: int) -> None:
    """If this fails, `os._exit(0)` at the end, which avoids a crash in a library's clean-up, hides every failure."""
    source = f"""
        import atexit
        import os

        atexit.register(os._exit, {status})

        def test_decides():
            assert {is_right}
    """
    bazel.run(source, code=code)


@pytest.mark.parametrize("call", ["threading.Thread(target={}).start()", "atexit.register({})"])
def test_runner_that_does_not_end_reports_the_cause(bazel: Bazel, call: str) -> None:
    """If this fails, Bazel waits until its timeout and gives no reason."""
    source = f"""
        import atexit
        import threading

        def waits():
            threading.Event().wait()

        def test_passes():
            {call.format("waits")}
    """
    target, ended = bazel.run(source, code=pytest.ExitCode.TESTS_FAILED)
    assert "the process still ran" in ended.log
    assert re.search(r"test_cases\.py\", line \d+ in waits", ended.log), ended.log
    target.check(passed="test_passes")


def test_results_that_cannot_be_written_fail_the_run(bazel: Bazel) -> None:
    """If this fails, a run without results is green."""
    source = """
        import os
        import shutil

        def test_removes():
            shutil.rmtree(os.path.dirname(os.environ["XML_OUTPUT_FILE"]))
    """
    (bazel.folder / "results").mkdir()
    env = {"XML_OUTPUT_FILE": str(bazel.folder / "results" / "test.xml")}
    _, ended = bazel.run(source, code=pytest.ExitCode.TESTS_FAILED, env=env)
    assert "test.xml: the results cannot be written" in ended.log
    assert "Traceback" not in ended.log


def test_failed_cases_leave_their_logs_and_passed_ones_do_not(bazel: Bazel) -> None:
    """If this fails, Bazel shows no logs of a failed case, or useless logs of passed ones."""
    source = """
        import pytest

        @pytest.mark.distributed
        @pytest.mark.parametrize("value", ["a/b", "a b", "fine"])
        def test_says(world, value):
            print(f"{value} said by rank {world.rank}")
            assert value == "fine" or world.rank != 1
    """
    target, _ = bazel.run(source, code=pytest.ExitCode.TESTS_FAILED)
    case = "pkg-test_cases.py-test_says-a-b"
    # Names that differ only in replaced characters have different marks.
    names = {path.name for path in target.outputs.iterdir()} - {"events.jsonl.gz"}
    (first, second) = {name.removeprefix(f"{case}.").partition(".")[0] for name in names}
    assert names == {f"{case}.{mark}.rank-{rank}.log" for mark in (first, second) for rank in (0, 1)}
    said = "".join(path.read_text(encoding="utf-8") for path in target.outputs.glob("*.rank-1.log"))
    assert "a/b said by rank 1" in said
    assert "a b said by rank 1" in said


def test_end_of_the_fork_server_is_reported_to_the_executor(bazel: Bazel) -> None:
    """If this fails, a kill by the kernel's out-of-memory killer counts as a bug of the test."""
    source = """
        import os
        import threading
        import pytest

        @pytest.mark.distributed
        def test_loses_its_parent(world):
            if world.rank == 0:
                os.kill(os.getppid(), 9)
            threading.Event().wait()
    """
    infrastructure = bazel.folder / "infrastructure"
    env = {"TEST_INFRASTRUCTURE_FAILURE_FILE": str(infrastructure)}
    bazel.run(source, code=pytest.ExitCode.TESTS_FAILED, env=env)
    said = infrastructure.read_text(encoding="utf-8")
    assert said.startswith("dist_testing\n")
    assert "The fork server (pid " in said


def test_runner_ignores_the_protocol_without_bazel(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a test started by hand in such a shell overwrites the results of another."""
    source = """
        import pytest
        import dist_testing

        @pytest.mark.distributed(world_size=2)
        def test_fails(world):
            assert world.rank == 0

        if __name__ == "__main__":
            dist_testing.run_tests()
    """
    write_file(tmp_path, "test_cases.py", source)
    (tmp_path / "outputs").mkdir()
    names = (
        "XML_OUTPUT_FILE",
        "TEST_PREMATURE_EXIT_FILE",
        "TEST_WARNINGS_OUTPUT_FILE",
        "TEST_SHARD_STATUS_FILE",
        "TEST_INFRASTRUCTURE_FAILURE_FILE",
    )
    env = {
        **{name: str(tmp_path / name) for name in names},
        "TEST_UNDECLARED_OUTPUTS_DIR": str(tmp_path / "outputs"),
        "TEST_TOTAL_SHARDS": "2",
        "TEST_SHARD_INDEX": "1",
        "TESTBRIDGE_TEST_ONLY": "nothing",
        "COVERAGE_DIR": str(tmp_path / "outputs"),
        "COVERAGE_MANIFEST": os.devnull,
    }
    child = starter.start(["test_cases.py"], tmp_path, env=env)
    assert child.wait() == pytest.ExitCode.TESTS_FAILED, child.log
    ended = run_pytest(starter, tmp_path, "test_cases.py", env=env)
    assert "1 failed" in ended.log
    assert [name for name in names if (tmp_path / name).exists()] == []
    assert list((tmp_path / "outputs").iterdir()) == []


# Part of a file name that is not text, as Python reads it, and a character that no file name can contain.
_ODD = r"no such data: /data/\udce9t\ud800.bin"

_SKIPS = f"""
    import pytest

    @pytest.mark.distributed
    def test_skips(world):
        pytest.skip("{_ODD}")
"""

_FAILS = f"""
    import pytest

    @pytest.mark.distributed
    def test_fails(world):
        raise ValueError("{_ODD}")
"""


@pytest.mark.parametrize(
    ("encoding", "fresh"), [(None, False), ("ascii:strict", True)], ids=["of the machine", "ASCII"]
)
def test_reason_that_cannot_be_encoded_is_reported(bazel: Bazel, encoding: str | None, fresh: bool) -> None:
    """If this fails, a skip ends the run with a traceback and no XML, which Bazel takes for a failure."""
    target, ended = bazel.run(_SKIPS, env={"PYTHONIOENCODING": encoding}, fresh=fresh)
    assert ended.log.partition("\n")[0].endswith(f": EVERY CASE WAS SKIPPED: {_ODD}")
    assert target.xml()["test_skips"].outcome == "skipped"
    assert _ODD in target.warnings_file.read_text(encoding="utf-8")


def test_failure_that_cannot_be_encoded_is_reported(bazel: Bazel) -> None:
    """If this fails, a failure ends the run with a traceback and no XML."""
    target, ended = bazel.run(_FAILS, code=1)
    assert f"E       ValueError: {_ODD}" in ended.log.splitlines()
    assert target.xml()["test_fails"].outcome == "failure"


def test_report_keeps_its_lines_on_any_terminal(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a report is one long line: pytest escapes a whole text that it cannot write."""
    ended = run_cases(starter, tmp_path, _FAILS, "--dist-world-size=1")
    assert ended.code == 1, ended.log
    lines = ended.log.splitlines()
    assert "    @pytest.mark.distributed" in lines
    assert f"E       ValueError: {_ODD}" in lines


def test_workers_of_xdist_are_refused_with_the_way_out(bazel: Bazel) -> None:
    """If this fails, each case fails for a reason that is none: its worker does not know the fixture `world`."""
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    code = pytest.ExitCode.USAGE_ERROR
    _, ended = bazel.run("def test_never(world): ...\n", "-pxdist", "-n2", code=code)
    assert ended.log.splitlines()[0] == "dist_testing: //pkg:cases_gloo: gloo, world size 2, fork"
    assert "ERROR: //pkg:cases_gloo: -n (pytest-xdist) under Bazel.\n" in ended.log
    assert "set shard_count" in ended.log
