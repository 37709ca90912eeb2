"""Log records of ranks: in a rank's output, in the form that pytest uses in the runner.

The worlds have no default group: gloo of torch 2.10 prints a line when a group has connected.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.children import Target, run_cases, write_file
from tests.support.starter import Starter

_LOGGED = """
    import logging
    import os
    import pytest
    import torch

    pytestmark = pytest.mark.distributed(world_size=2, init=False)
    mine = logging.getLogger("mine")
    own = logging.getLogger("own")
    own.propagate = False
    handled = logging.getLogger("handled")
    handled.propagate = False
    handled.addHandler(logging.StreamHandler())

    def test_logs(world):
        world.log.warning("of the world")
        mine.warning("in %s", "words")
        mine.info("of less importance")
        own.warning("not propagated")
        assert world.rank, "rank 0 fails"

    def test_handlers(world):
        handled.warning("by a handler of rank %d", world.rank)
        logging.getLogger("torch.distributed").warning("by torch")
        assert world.rank, "rank 0 fails"

    def test_caplog(world, caplog):
        with caplog.at_level("INFO"):
            mine.info("in words")
        assert caplog.messages == ["in words"]
        assert world.rank, "rank 0 fails"

    # Captured output has no records, so that a test can compare it.

    def test_capsys(world, capsys):
        mine.warning("beside")
        print("printed")
        assert capsys.readouterr() == ("printed\\n", "")

    def test_capfd(world, capfd):
        mine.warning("beside")
        os.write(2, b"printed")
        assert capfd.readouterr() == ("", "printed")
"""


def _output(report: str, rank: int) -> str:
    """Return the part of a report with a rank's output."""
    rule = "-" * 100
    return report.partition(f"{rule}\noutput of rank {rank}:\n")[2].partition(f"\n{rule}\n")[0]


@pytest.mark.parametrize("isolation", ["fork", "pool", "spawn", "thread"])
def test_reports_have_the_records(starter: Starter, tmp_path: Path, isolation: str) -> None:
    """If this fails, the records that led to a failure are missing in the report of the failed rank.

    Handlers that torch or a test file made at import write to the rank's output, and not to the runner's old one.
    """
    options = ["--dist-backend=threaded"] if isolation == "thread" else [f"--dist-isolation={isolation}"]
    # Ranks that are threads share what the fixtures change; fresh interpreters take seconds each.
    has_fixtures = isolation in ("fork", "pool")
    options += [] if has_fixtures else ["-k", "logs or handlers"]
    ended = run_cases(starter, tmp_path, _LOGGED, *options)
    outputs = {name: _output(report, 0).splitlines() for name, report in ended.failures().items()}
    assert outputs["test_logs"] == [
        "WARNING  dist_testing.rank0:test_cases.py:16 of the world",
        "WARNING  mine:test_cases.py:17 in words",
        "WARNING  own:test_cases.py:19 not propagated",
    ], ended.log
    ours, by_torch = outputs["test_handlers"]
    assert ours == "by a handler of rank 0", ended.log
    assert by_torch.endswith("] by torch"), ended.log
    assert ended.log.count("by a handler of rank 1") == 0, "rank 1 passed, so its output is not shown"
    if has_fixtures:
        assert outputs["test_caplog"] == ["INFO     mine:test_cases.py:29 in words"], ended.log
        ended.check(passed="test_capsys test_capfd", failed="test_logs test_handlers test_caplog")


@pytest.mark.parametrize("isolation", ["fork", "spawn"])
def test_level_and_format_are_those_of_the_session(starter: Starter, tmp_path: Path, isolation: str) -> None:
    """If this fails, `--log-level` and `--log-format` are accepted and ignored."""
    options = [f"--dist-isolation={isolation}", "--log-level=INFO", "--log-format=%(levelname)s, %(message)s"]
    ended = run_cases(starter, tmp_path, _LOGGED, *options, "-k", "logs")
    assert "WARNING, in words\nINFO, of less importance\n" in _output(ended.log, 0), ended.log


def test_live_output_has_the_records_once(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a record under `-s` has no rank, or pytest's live log prints it a second time."""
    ended = run_cases(starter, tmp_path, _LOGGED, "-s", "--log-cli-level=INFO", "-k", "logs")
    said = ["of the world", "in words", "of less importance", "not propagated"]
    for rank in range(2):
        lines = [line for line in ended.log.splitlines() if line.startswith(f"[rank {rank}] ")]
        assert [line.rpartition(":")[2].partition(" ")[2] for line in lines] == said, ended.log
    assert "live log" not in ended.log


_CLASS = """
    import logging
    import dist_testing

    silent = logging.getLogger("silent")

    class LogTest(dist_testing.MultiProcessTestCase):
        world_size = 2

        def test_logs(self):
            logging.getLogger("mine").warning("in words")
            self.assertEqual(self.rank, 1)

        def test_handlers(self):
            assert [type(handler) for handler in silent.handlers] == [logging.NullHandler], silent.handlers
"""


def test_records_of_unittest_classes(starter: Starter, tmp_path: Path) -> None:
    """If this fails, records of unittest classes have no pytest format under pytest, or are lost without it.

    A test that counts the handlers of a logger, as torch's own do, must see none of pytest's.
    """
    # pytest adds its handlers to the loggers that exist when the session starts.
    conftest = """
        import logging

        silent = logging.getLogger("silent")
        silent.propagate = False
        silent.addHandler(logging.NullHandler())
    """
    write_file(tmp_path, "conftest.py", conftest)
    ended = run_cases(starter, tmp_path, _CLASS)
    ended.check(passed="test_handlers", failed="test_logs")
    assert _output(ended.log, 0) == "WARNING  mine:test_cases.py:11 in words", ended.log
    child = starter.start(["-m", "unittest", "test_cases.LogTest.test_logs"], tmp_path)
    child.wait()
    assert _output(child.log, 0) == "in words", child.log


def test_records_under_bazel(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a target's log lacks the records."""
    ended = Target(tmp_path, {"test_cases.py": _LOGGED}).run(starter, "-k", "logs")
    assert "WARNING  mine:test_cases.py:17 in words" in _output(ended.log, 0).splitlines(), ended.log


def test_log_file_is_not_truncated_by_ranks(starter: Starter, tmp_path: Path) -> None:
    """If this fails, fresh interpreters, which collect with the session's arguments, empty the log file."""
    source = """
        import logging
        import pytest

        def test_before():
            logging.getLogger("mine").warning("before")

        @pytest.mark.distributed(world_size=2, init=False)
        def test_logs(world):
            logging.getLogger("mine").warning("on a rank")

        def test_after():
            logging.getLogger("mine").warning("after")
    """
    ended = run_cases(starter, tmp_path, source, "--dist-isolation=spawn", "--log-file=records.txt")
    assert ended.code == 0, ended.log
    records = [line.rpartition(" ")[2] for line in (tmp_path / "records.txt").read_text().splitlines()]
    assert records == ["before", "after"], records
