"""`--dist-continue`: a run that was killed, or that failed, goes on with what has not passed."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.support.bell import Bell
from tests.support.children import run_pytest, start_pytest, write_file
from tests.support.starter import Starter

# Each kind of test; one of them never ends, and one fails, if the environment says so.
_CASES = """
    import os
    import threading
    import unittest
    import pytest
    from tests.support.bell import ring

    def test_plain(): ...

    def test_skipped():
        pytest.skip("always")

    @pytest.mark.distributed
    @pytest.mark.xfail(strict=True)
    def test_expected(world):
        assert world.rank < 0

    @pytest.fixture
    def broken():
        yield
        assert "BROKEN" not in os.environ

    def test_teardown(broken): ...

    class TestUnit(unittest.TestCase):
        def test_unit(self): ...

    @pytest.mark.distributed
    def test_ranks(world):
        assert world.rank != 1 or "BROKEN" not in os.environ

    @pytest.mark.distributed
    def test_held(world):
        if "BROKEN" in os.environ:
            ring("held")
            threading.Event().wait()

    @pytest.mark.distributed
    def test_after(world): ...
"""
_OPTIONS = ("-rA", "--dist-world-size=2", "--dist-continue=progress.jsonl", "test_cases.py")
_TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
_HEAD = '{"dist_continue": 1, "backend": "gloo", "isolation": "fork", "world_sizes": [4]}\n'


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_run_goes_on_where_it_was_killed(starter: Starter, tmp_path: Path, number: signal.Signals) -> None:
    """If this fails, a job that was killed after an hour begins again, or a case that failed counts as passed."""
    write_file(tmp_path, "test_cases.py", _CASES)
    with Bell(tmp_path) as bell:
        child = start_pytest(starter, tmp_path, *_OPTIONS, env={**bell.env, "BROKEN": "1"})
        bell.wait(2, child)
        child.send_signal(number)
        child.wait()
    starter.wait_nothing_left(15)
    head, *lines = map(json.loads, (tmp_path / "progress.jsonl").read_text().splitlines())
    assert head["dist_continue"] == 1
    assert {line["case"].rpartition("::")[2]: line["status"] for line in lines} == {
        "test_plain": "passed",
        "test_skipped": "skipped",
        "test_expected": "xfailed",
        "test_teardown": "failed",
        "test_unit": "passed",
        "test_ranks": "failed",
    }
    # The kill came while a line was written.
    with (tmp_path / "progress.jsonl").open("a") as file:
        file.write('{"case": "test_cases.py::test_he')
    some = run_pytest(starter, tmp_path, *_OPTIONS, "-k", "unit or ranks or held")
    assert (some.code, some.outcomes()) == (0, {"test_ranks": "PASSED", "test_held": "PASSED"}), some.log
    assert "dist_testing: 1 of 3 cases had passed before (--dist-continue=progress.jsonl)" in some.log
    rest = run_pytest(starter, tmp_path, *_OPTIONS)
    assert (rest.code, rest.outcomes()) == (0, {"test_teardown": "PASSED", "test_after": "PASSED"}), rest.log
    done = run_pytest(starter, tmp_path, *_OPTIONS, "--dist-events=events.jsonl")
    assert (done.code, done.outcomes()) == (0, {}), done.log
    assert "dist_testing: all 8 cases had passed before; remove the file to run them again" in done.log
    assert json.loads((tmp_path / "events.jsonl").read_text().splitlines()[-1])["exit_code"] == 0


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        ("notes\n", [], "the file has other content, and is left as it is"),
        ("notes", [], "the file has other content, and is left as it is"),
        ('{"event": "run_started", "schema": 2}\n', [], "the file has other content, and is left as it is"),
        (_HEAD.replace("1", "2", 1), [], "and is left as it is: dist_continue = 2; expected "),
        (_HEAD + "{}\n" + _HEAD, [], "line 2 is damaged: missing fields ['case', 'status']"),
        (_HEAD + '{"case": "a", "status": "good"}\n', [], "line 2 is damaged: status = 'good'; expected one of "),
        (_HEAD, ["--dist-world-size=2"], "with backend gloo, isolation fork, world sizes 4; this run has backend gloo"),
        (_HEAD, ["--dist-continue=."], "--dist-continue=.: cannot be read and written: [Errno 21] Is a directory"),
    ],
)
def test_a_wrong_file_is_refused_and_kept(
    starter: Starter, tmp_path: Path, content: str, options: list[str], said: str
) -> None:
    """If this fails, a typing error destroys a file, or results of another kind of run count for this one."""
    write_file(tmp_path, "test_cases.py", "def test_plain(): pass")
    file = tmp_path / "progress.jsonl"
    file.write_text(content)
    ended = run_pytest(starter, tmp_path, "--dist-continue=progress.jsonl", *options)
    assert ended.code == pytest.ExitCode.USAGE_ERROR, ended.log
    assert said in ended.log
    assert file.read_text() == content
    error = ended.log.partition("ERROR: ")[2].strip().splitlines()
    assert len(error) == 3, error
    assert error[0].startswith("--dist-continue=")


def test_an_empty_file_and_a_cut_first_line_are_a_new_file(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a run that was killed at its begin leaves a file that every later run refuses."""
    write_file(tmp_path, "test_cases.py", "def test_plain(): pass")
    for content in ("", _HEAD[:30]):
        (tmp_path / "progress.jsonl").write_text(content)
        ended = run_pytest(starter, tmp_path, "--dist-continue=progress.jsonl")
        assert ended.code == 0, ended.log
        head, line = (tmp_path / "progress.jsonl").read_text().splitlines(keepends=True)
        assert head == _HEAD
        assert json.loads(line) == {"case": "test_cases.py::test_plain", "status": "passed"}


@pytest.mark.parametrize(
    ("options", "env", "said"),
    [
        (["--dist-watch"], {}, "not possible with --dist-watch"),
        ([], _TORCHRUN, "not possible in a world that another launcher has started"),
        (["-p", "xdist", "-n", "2"], {}, "not possible with pytest-xdist"),
    ],
)
def test_sessions_that_other_processes_share_are_refused(
    starter: Starter, tmp_path: Path, options: list[str], env: dict[str, str], said: str
) -> None:
    """If this fails, ranks or workers choose different tests, and wait for each other."""
    if "xdist" in options:
        pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    write_file(tmp_path, "test_cases.py", "def test_plain(): pass")
    ended = run_pytest(starter, tmp_path, "--dist-continue=progress.jsonl", *options, env=env)
    assert ended.code == pytest.ExitCode.USAGE_ERROR, ended.log
    assert f"--dist-continue=progress.jsonl: {said}" in ended.log
    assert not (tmp_path / "progress.jsonl").exists()
