"""The results, files and exit code that Bazel gets at the end of a run, however the run ends."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.support.bell import Bell
from tests.support.children import Target, run_pytest, write_file
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


def test_ranks_that_never_become_ready_end_within_the_runs_time(starter: Starter, tmp_path: Path) -> None:
    """If this fails, Bazel ends the runner before it reports an import that hangs on fresh interpreters."""
    source = f"""
        import os
        import threading
        import pytest

        try:
            os.close(os.open({str(tmp_path / "imported")!r}, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            threading.Event().wait()

        @pytest.mark.distributed(isolation="spawn")
        def test_starts(world): ...
    """
    target = Target(tmp_path, {"test_cases.py": source})
    ended = target.run(starter, env={"TEST_TIMEOUT": "20"}, limit_s=20)
    assert ended.code == pytest.ExitCode.TESTS_FAILED, ended.log
    target.check(failure="test_starts")
    assert "ranks 0, 1 were still running at the deadline (0, 1 in import)" in ended.log
    assert re.search(r"test_cases\.py\", line \d+ in <module>", ended.log)


@pytest.mark.parametrize(
    ("file", "code"), [("conftest.py", 0), ("conftest.py", 7), ("test_cases.py", 0)], ids=lambda value: str(value)
)
def test_exit_at_an_import_is_not_a_pass(starter: Starter, tmp_path: Path, file: str, code: int) -> None:
    """If this fails, `sys.exit(0)` before the first case is always green."""
    files = {"test_cases.py": "def test_never(): ...\n", file: f"import sys\n\nsys.exit({code})\n"}
    target = Target(tmp_path, files, spec={"srcs": ["//pkg:test_cases.py"]})
    ended = target.run(starter)
    assert ended.code not in (0, None), ended.log
    assert [result.outcome for result in target.xml().values()] == ["error"]
    if file == "conftest.py":
        assert ended.code == pytest.ExitCode.TESTS_FAILED
        assert f"sys.exit({code})" in ended.log
        assert "Traceback" not in ended.log


_EXITS_AT_IMPORT = """
    import os

    os._exit(0)

    def test_never(): ...
"""
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


@pytest.mark.parametrize(
    ("source", "outcomes", "not_run"),
    [
        (_EXITS_AT_IMPORT, ["error"], "0"),
        (_EXITS_IN_A_PLAIN_TEST, ["error", "passed"], "1"),
        (_EXITS_IN_A_THREAD, ["error"], "0"),
    ],
    ids=["import", "plain test", "thread"],
)
def test_exit_of_the_runner_without_clean_up_is_not_a_pass(
    starter: Starter, tmp_path: Path, source: str, outcomes: list[str], not_run: str
) -> None:
    """If this fails, the target is green: Bazel 7 ignores the premature-exit file, and the exit code is 0."""
    target = Target(tmp_path, {"test_cases.py": source})
    ended = target.run(starter)
    assert ended.code == pytest.ExitCode.INTERRUPTED, ended.log
    results = target.xml()
    assert sorted(result.outcome for result in results.values()) == outcomes
    (error,) = (result for result in results.values() if result.outcome == "error")
    assert "has called os._exit(0) in the runner" in error.message
    assert target.suite_properties()["not_run"] == not_run


@pytest.mark.parametrize(("is_right", "status", "code"), [(False, 0, 1), (True, 0, 0), (True, 3, 3)])
def test_exit_handler_cannot_turn_a_failure_into_a_pass(
    starter: Starter, tmp_path: Path, is_right: bool, status: int, code: int
) -> None:
    """If this fails, `os._exit(0)` at the end, which avoids a crash in a library's clean-up, hides every failure."""
    source = f"""
        import atexit
        import os

        atexit.register(os._exit, {status})

        def test_decides():
            assert {is_right}
    """
    ended = Target(tmp_path, {"test_cases.py": source}).run(starter)
    assert ended.code == code, ended.log


@pytest.mark.parametrize("call", ["threading.Thread(target={}).start()", "atexit.register({})"])
def test_runner_that_does_not_end_reports_the_cause(starter: Starter, tmp_path: Path, call: str) -> None:
    """If this fails, Bazel waits until its timeout and gives no reason."""
    source = f"""
        import atexit
        import threading

        def waits():
            threading.Event().wait()

        def test_passes():
            {call.format("waits")}
    """
    target = Target(tmp_path, {"test_cases.py": source})
    ended = target.run(starter, env={"TEST_TIMEOUT": "300"}, limit_s=120)
    assert ended.code == pytest.ExitCode.TESTS_FAILED, ended.log
    assert "the process still ran" in ended.log
    assert re.search(r"test_cases\.py\", line \d+ in waits", ended.log), ended.log
    target.check(passed="test_passes")


def test_children_of_tests_exit_normally(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the guard of the runner changes how other processes end."""
    source = """
        import os
        from os import _exit

        def test_forks():
            child = os.fork()
            if child == 0:
                _exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    """
    ended = Target(tmp_path, {"test_cases.py": source}).run(starter)
    assert ended.code == 0, ended.log


def test_run_that_fails_before_its_cases_has_a_failure_in_the_xml(starter: Starter, tmp_path: Path) -> None:
    """If this fails, dashboards see an empty file, like that of a target without tests."""
    target = Target(tmp_path, {"test_cases.py": "def test_never(): ...\n"})
    ended = target.run(starter, "--dist-world-size=0")
    assert ended.code == pytest.ExitCode.USAGE_ERROR, ended.log
    (result,) = target.xml().values()
    assert result.outcome == "error"
    assert "outside its cases" in result.message
    assert "--dist-world-size=0" in ended.log


def test_run_that_a_test_ends_is_not_a_pass(starter: Starter, tmp_path: Path) -> None:
    """If this fails, `pytest.exit` with 0 passes all cases that it keeps from running."""
    source = """
        import pytest

        def test_ends_everything():
            pytest.exit("enough", returncode=0)

        def test_never():
            raise ValueError
    """
    target = Target(tmp_path, {"test_cases.py": source})
    ended = target.run(starter)
    assert ended.code == pytest.ExitCode.TESTS_FAILED, ended.log
    assert "the run ended before its cases did: enough" in ended.log
    assert target.xml()["test_ends_everything"].outcome == "error"
    assert target.suite_properties() == {"interrupted": "enough", "not_run": "1"}


def test_repeated_runs_are_distinguishable(starter: Starter, tmp_path: Path) -> None:
    """If this fails, ranks of `--runs_per_test` do not get their seed, or results do not name their run."""
    source = """
        import os
        import pytest

        @pytest.mark.distributed
        def test_seed(world):
            assert os.environ["TEST_RANDOM_SEED"] == "3"
    """
    target = Target(tmp_path, {"test_cases.py": source})
    ended = target.run(starter, env={"TEST_RUN_NUMBER": "3", "TEST_RANDOM_SEED": "3"})
    assert ended.code == 0, ended.log
    assert ended.log.startswith("dist_testing: //pkg:cases_gloo: gloo, world size 2, fork, run 3\n")
    assert target.suite_properties() == {"run_number": "3", "random_seed": "3"}


def test_results_that_cannot_be_written_fail_the_run(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a run without results is green."""
    source = """
        import os
        import shutil

        def test_removes():
            shutil.rmtree(os.path.dirname(os.environ["XML_OUTPUT_FILE"]))
    """
    target = Target(tmp_path, {"test_cases.py": source})
    (tmp_path / "results").mkdir()
    ended = target.run(starter, env={"XML_OUTPUT_FILE": str(tmp_path / "results" / "test.xml")})
    assert ended.code == pytest.ExitCode.TESTS_FAILED
    assert "test.xml: the results cannot be written" in ended.log
    assert "Traceback" not in ended.log


def test_failed_cases_leave_their_logs_and_passed_ones_do_not(starter: Starter, tmp_path: Path) -> None:
    """If this fails, Bazel shows no logs of a failed case, or useless logs of passed ones."""
    source = """
        import pytest

        @pytest.mark.distributed
        @pytest.mark.parametrize("value", ["a/b", "a b", "fine"])
        def test_says(world, value):
            print(f"{value} said by rank {world.rank}")
            assert value == "fine" or world.rank != 1
    """
    target = Target(tmp_path, {"test_cases.py": source})
    ended = target.run(starter)
    assert ended.code == pytest.ExitCode.TESTS_FAILED
    case = "pkg-test_cases.py-test_says-a-b"
    # Names that differ only in replaced characters have different marks.
    names = {path.name for path in target.outputs.iterdir()} - {"events.jsonl.gz"}
    (first, second) = {name.removeprefix(f"{case}.").partition(".")[0] for name in names}
    assert names == {f"{case}.{mark}.rank-{rank}.log" for mark in (first, second) for rank in (0, 1)}
    said = "".join(path.read_text(encoding="utf-8") for path in target.outputs.glob("*.rank-1.log"))
    assert "a/b said by rank 1" in said
    assert "a b said by rank 1" in said


def test_end_of_the_fork_server_is_reported_to_the_executor(starter: Starter, tmp_path: Path) -> None:
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
    target = Target(tmp_path, {"test_cases.py": source})
    infrastructure = tmp_path / "infrastructure"
    ended = target.run(starter, env={"TEST_INFRASTRUCTURE_FAILURE_FILE": str(infrastructure)})
    assert ended.code == pytest.ExitCode.TESTS_FAILED, ended.log
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
