"""Log records of ranks: in a rank's output, in the form that pytest uses in the runner.

The worlds have no default group: gloo of torch 2.10 prints a line when a group has connected.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.children import Target, run_cases, write_file
from tests.support.starter import Starter

_THREADED = "--dist-backend=threaded"
_ISOLATIONS = pytest.mark.parametrize("isolation", ["fork", "pool", "spawn", "thread"])
_LOGGED = """
    import logging
    import pytest

    own = logging.getLogger("own")
    own.propagate = False

    @pytest.mark.distributed(world_size=2, init=False)
    def test_logs(world):
        world.log.warning("of the world")
        logging.getLogger("mine").warning("in %s", "words")
        logging.getLogger("mine").info("of less importance")
        own.warning("not propagated")
        assert world.rank, "rank 0 fails"
    """


def _options(isolation: str) -> list[str]:
    return [_THREADED] if isolation == "thread" else [f"--dist-isolation={isolation}"]


def _output(log: str, rank: int) -> str:
    """Return the part of the report with a rank's output."""
    rule = "-" * 100
    return log.partition(f"{rule}\noutput of rank {rank}:\n")[2].partition(f"\n{rule}\n")[0]


@_ISOLATIONS
def test_report_has_the_records(starter: Starter, tmp_path: Path, isolation: str) -> None:
    """If this fails, the records that led to a failure are missing in the report of the failed rank."""
    ended = run_cases(starter, tmp_path, _LOGGED, *_options(isolation))
    assert _output(ended.log, 0).splitlines() == [
        "WARNING  dist_testing.rank0:test_cases.py:10 of the world",
        "WARNING  mine:test_cases.py:11 in words",
        "WARNING  own:test_cases.py:13 not propagated",
    ], ended.log


@_ISOLATIONS
def test_level_and_format_are_those_of_the_session(starter: Starter, tmp_path: Path, isolation: str) -> None:
    """If this fails, `--log-level` and `--log-format` are accepted and ignored."""
    options = [*_options(isolation), "--log-level=INFO", "--log-format=%(levelname)s, %(message)s"]
    ended = run_cases(starter, tmp_path, _LOGGED, *options)
    assert "WARNING, in words\nINFO, of less importance\n" in _output(ended.log, 0), ended.log


def test_live_output_has_the_records_once(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a record under `-s` has no rank, or pytest's live log prints it a second time."""
    ended = run_cases(starter, tmp_path, _LOGGED, "-s", "--log-cli-level=INFO")
    for rank in range(2):
        lines = [line for line in ended.log.splitlines() if line.startswith(f"[rank {rank}] ")]
        assert [line.rpartition(":")[2].partition(" ")[2] for line in lines] == [
            "of the world",
            "in words",
            "of less importance",
            "not propagated",
        ], ended.log
    assert "live log" not in ended.log


def test_loggers_have_the_handlers_that_the_test_gave_them(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a test that counts the handlers of a logger, as torch's own do, sees one of pytest's."""
    # pytest adds its handlers to the loggers that exist when the session starts.
    conftest = """
        import logging

        silent = logging.getLogger("silent")
        silent.propagate = False
        silent.addHandler(logging.NullHandler())
    """
    write_file(tmp_path, "conftest.py", conftest)
    source = """
        import logging
        import dist_testing

        silent = logging.getLogger("silent")

        class HandlersTest(dist_testing.MultiProcessTestCase):
            world_size = 2

            def test_handlers(self):
                assert [type(handler) for handler in silent.handlers] == [logging.NullHandler], silent.handlers
    """
    ended = run_cases(starter, tmp_path, source)
    assert ended.code == 0, ended.log


def test_caplog_and_the_report_both_have_the_records(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a failing test that uses caplog has no records in its report, its only output."""
    source = """
        import logging
        import pytest

        @pytest.mark.distributed(world_size=2, init=False)
        def test_logs(world, caplog):
            with caplog.at_level("INFO"):
                logging.getLogger("mine").info("in words")
            assert caplog.messages == ["in words"]
            assert world.rank, "rank 0 fails"
    """
    ended = run_cases(starter, tmp_path, source)
    assert _output(ended.log, 0) == "INFO     mine:test_cases.py:8 in words", ended.log


def test_records_are_not_in_captured_output(starter: Starter, tmp_path: Path) -> None:
    """If this fails, `capsys` and `capfd` contain pytest's lines about records, and a test's comparison breaks."""
    source = """
        import logging
        import os
        import pytest

        pytestmark = pytest.mark.distributed(world_size=2, init=False)

        def test_capsys(world, capsys):
            logging.getLogger("mine").warning("beside")
            print("printed")
            assert capsys.readouterr() == ("printed\\n", "")

        def test_capfd(world, capfd):
            logging.getLogger("mine").warning("beside")
            os.write(2, b"printed")
            assert capfd.readouterr() == ("", "printed")
    """
    ended = run_cases(starter, tmp_path, source)
    assert ended.code == 0, ended.log


@_ISOLATIONS
def test_handlers_made_at_import_write_to_the_ranks_output(starter: Starter, tmp_path: Path, isolation: str) -> None:
    """If this fails, handlers that torch or a test file made at import write to the runner's old output."""
    source = """
        import logging
        import pytest
        import torch

        own = logging.getLogger("own")
        own.propagate = False
        own.addHandler(logging.StreamHandler())

        @pytest.mark.distributed(world_size=2, init=False)
        def test_logs(world):
            own.warning("by a handler of rank %d", world.rank)
            logging.getLogger("torch.distributed").warning("by torch")
            assert world.rank, "rank 0 fails"
    """
    ended = run_cases(starter, tmp_path, source, *_options(isolation))
    ours, by_torch = _output(ended.log, 0).splitlines()
    assert ours == "by a handler of rank 0", ended.log
    assert by_torch.endswith("] by torch"), ended.log
    assert ended.log.count("by a handler of rank 1") == 0, "rank 1 passed, so its output is not shown"


_CLASS = """
    import logging
    import dist_testing

    class LogTest(dist_testing.MultiProcessTestCase):
        world_size = 2

        def test_logs(self):
            logging.getLogger("mine").warning("in words")
            self.assertEqual(self.rank, 1)

    if __name__ == "__main__":
        dist_testing.run_tests()
    """


def test_records_of_unittest_classes(starter: Starter, tmp_path: Path) -> None:
    """If this fails, records of unittest classes have no pytest format under pytest, or are lost without it."""
    ended = run_cases(starter, tmp_path, _CLASS)
    assert _output(ended.log, 0) == "WARNING  mine:test_cases.py:9 in words", ended.log
    child = starter.start(["-m", "unittest", "test_cases"], tmp_path)
    child.wait()
    assert _output(child.log, 0) == "in words", child.log


def test_records_under_bazel(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a target's log lacks the records."""
    ended = Target(tmp_path, {"test_cases.py": _LOGGED}).run(starter)
    assert "WARNING  mine:test_cases.py:11 in words" in _output(ended.log, 0).splitlines(), ended.log


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
