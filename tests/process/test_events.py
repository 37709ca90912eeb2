"""`--dist-events`: the facts of a run, complete and in order, whatever becomes of the ranks."""

from __future__ import annotations

import gzip
import json
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from dist_testing.core.events.event import (
    CaseEnded,
    CaseRecorded,
    CaseStarted,
    Event,
    RunEnded,
    RunStarted,
    TestsCollected,
)
from dist_testing.core.ground.record import SCHEMA_FILE, CaseRecord
from dist_testing.event_file import read_events
from tests.report.schema_check import check
from tests.support.bell import Bell
from tests.support.children import Ended, Target, run_cases, start_pytest, write_file
from tests.support.starter import Starter


def _run(starter: Starter, folder: Path, source: str, *options: str) -> tuple[Ended, list[Event]]:
    ended = run_cases(starter, folder, source, "--dist-events=events.jsonl.gz", *options)
    return ended, read_events(folder / "events.jsonl.gz")


def _records(events: Sequence[Event]) -> dict[str, CaseRecord]:
    """The record of each case, by the last part of its name."""
    return {
        event.record.nodeid.rpartition("::")[2]: event.record for event in events if isinstance(event, CaseRecorded)
    }


def _assert_ordered(events: Sequence[Event], code: int) -> None:
    """Of a run that came to its end, whatever its verdict."""
    assert isinstance(events[0], RunStarted)
    assert events[-1] == RunEnded(events[-1].at_s, code)
    times = [event.at_s for event in events]
    assert times == sorted(times)
    began = [event.nodeid for event in events if isinstance(event, CaseStarted)]
    ended = [event.nodeid for event in events if isinstance(event, CaseEnded)]
    # The controller of pytest-xdist hears of tests that run side by side.
    assert sorted(ended) == sorted(began)


def _outcomes(case: CaseRecord) -> list[str]:
    assert [rank.rank for rank in case.ranks] == list(range(len(case.ranks)))
    return [rank.outcome for rank in case.ranks]


def _phases(case: CaseRecord, rank: int) -> list[str]:
    """What a rank did, after a look at the times."""
    told = case.ranks[rank]
    times = [time for _, begin_s, end_s in told.phases for time in (begin_s, end_s)]
    assert times[0] >= 0
    assert times == sorted(times)
    assert told.lost_phases == 0
    return [name for name, _, _ in told.phases]


_WHOLE = ["start", "init", "setup", "call", "teardown", "destroy"]

_WAYS = """
    import os
    import signal
    import threading
    import warnings
    import pytest

    pytestmark = pytest.mark.distributed(world_size=2)

    def test_passes(world):
        world.barrier()

    def test_warns(world):
        warnings.warn("of both")

    def test_raises(world):
        assert world.rank == 0, "of rank 1"

    def test_is_killed(world):
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        world.barrier()

    def test_skips(world):
        pytest.skip("not today")

    @pytest.mark.distributed(world_size=2, timeout=1)
    def test_hangs(world):
        threading.Event().wait()
"""


def test_every_way_to_end_is_told(starter: Starter, tmp_path: Path) -> None:
    """A report answers from the file alone what failed, which rank began it, and what each rank was doing."""
    ended, events = _run(starter, tmp_path, _WAYS)
    _assert_ordered(events, 1)
    cases = _records(events)
    assert {name: (case.status, _outcomes(case)) for name, case in cases.items()} == {
        "test_passes": ("passed", ["passed", "passed"]),
        "test_warns": ("passed", ["passed", "passed"]),
        "test_raises": ("failed", ["passed", "raised"]),
        "test_is_killed": ("failed", ["stopped", "signalled"]),
        "test_skips": ("skipped", ["skipped", "skipped"]),
        "test_hangs": ("failed", ["hung", "hung"]),
    }, ended.log
    blamed = {name: (case.cause, case.culprit, case.victims) for name, case in cases.items()}
    assert blamed["test_passes"] == blamed["test_skips"] == ("", None, ())
    assert blamed["test_raises"] == ("failure", 1, ())
    assert blamed["test_is_killed"] == ("crash", 1, (0,))
    assert blamed["test_hangs"][:2] == ("hang", None)
    assert cases["test_is_killed"].ranks[1].signal == signal.SIGKILL
    for case in cases.values():
        assert len({rank.pid for rank in case.ranks}) == 2
        for rank in case.ranks:
            # The clock of the record begins with the case.
            times = [rank.started_s, rank.ready_s, rank.seen_s]
            known = [time for time in times if time is not None]
            assert len(known) == 3
            assert known == sorted(known)
            assert 0 <= known[0] < known[-1] < case.duration_s + 1
    for number in range(2):
        assert _phases(cases["test_passes"], number) == _WHOLE
        assert _phases(cases["test_hangs"], number) == ["start", "init", "setup", "call"]
    assert _phases(cases["test_is_killed"], 1) == ["start", "init", "setup", "call"]
    assert all("UserWarning: of both (" in rank.warnings[0] for rank in cases["test_warns"].ranks)
    schema = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    with gzip.open(tmp_path / "events.jsonl.gz", "rt") as file:
        written = [event["record"] for line in file if (event := json.loads(line))["event"] == "case"]
    assert len(written) == len(cases)
    for record in written:
        check(record, schema, record["name"])


def test_a_case_is_within_its_test_and_the_test_is_reported(starter: Starter, tmp_path: Path) -> None:
    """Tests that run in the runner are part of the time, too; and one without a case needs a reason."""
    source = """
        import pytest

        @pytest.mark.distributed(world_size=1)
        def test_of_ranks(world, record_property):
            record_property("colour", 3)
            assert False, "boom"

        def test_of_the_runner(record_property):
            record_property("colour", "green")

        @pytest.mark.skip(reason="not today")
        @pytest.mark.distributed(world_size=1)
        def test_skipped(world): ...

        @pytest.mark.xfail(reason="a bug")
        def test_expected():
            assert False

        @pytest.fixture
        def wrong():
            yield
            raise RuntimeError("the teardown is wrong")

        def test_twice_wrong(wrong):
            raise RuntimeError("the call is wrong")

        @pytest.mark.xfail(reason="a bug of rank 1")
        @pytest.mark.distributed(world_size=2)
        def test_expects(world):
            assert world.rank == 0
    """
    write_file(tmp_path, "test_broken.py", "import no_such_module")
    _, events = _run(starter, tmp_path, source, "test_broken.py", "--continue-on-collection-errors")
    _assert_ordered(events, 1)
    assert [event.count for event in events if isinstance(event, TestsCollected)] == [6]
    records = _records(events)
    assert {name: (record.when, record.status) for name, record in records.items()} == {
        "test_broken.py": ("collect", "failed"),
        "test_of_ranks": ("call", "failed"),
        "test_of_the_runner": ("call", "passed"),
        "test_skipped": ("setup", "skipped"),
        "test_expected": ("call", "xfailed"),
        "test_twice_wrong": ("call", "failed"),
        "test_expects": ("call", "xfailed"),
    }
    assert records["test_skipped"].message == "not today"
    assert records["test_expected"].message == "a bug"
    assert "no_such_module" in records["test_broken.py"].text
    assert dict(records["test_of_the_runner"].properties) == {"colour": "green"}
    failed = records["test_of_ranks"]
    assert dict(failed.properties)["colour"] == "3"
    name, _, said = failed.text.partition("\n")[0].partition(": ")
    assert (name, said) == (f"{failed.nodeid} (world of 1)", failed.message)
    assert "AssertionError: boom" in failed.message
    assert records["test_twice_wrong"].message == "RuntimeError: the call is wrong"
    assert records["test_broken.py"].message == "ModuleNotFoundError: No module named 'no_such_module'"
    assert [len(records[name].ranks) for name in ("test_of_ranks", "test_of_the_runner", "test_skipped")] == [1, 0, 0]
    # A teardown that fails after the call: both texts, and one record that replaces the first.
    twice = records["test_twice_wrong"].text
    assert twice.index("the call is wrong") < twice.index("the teardown is wrong")
    # No rank is to blame for a failure that the test expects.
    expects = records["test_expects"]
    assert (expects.culprit, expects.cause, expects.world_size, len(expects.ranks)) == (None, "", 2, 2)


_TWO = """
    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.distributed(world_size=2)

    @pytest.mark.parametrize("number", range(2))
    def test_sums(world, number):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2
"""


@pytest.mark.parametrize("isolation", ["spawn", "pool"])
def test_ranks_of_every_kind_tell_their_phases(starter: Starter, tmp_path: Path, isolation: str) -> None:
    """Also those that run several cases, of which each has its own phases, and those in a fresh interpreter."""
    _, events = _run(starter, tmp_path, _TWO, f"--dist-isolation={isolation}")
    _assert_ordered(events, 0)
    cases = _records(events)
    assert list(cases) == ["test_sums[0]", "test_sums[1]"]
    for name, case in cases.items():
        assert _outcomes(case) == ["passed", "passed"]
        is_first = isolation != "pool" or name == "test_sums[0]"
        assert all((rank.pid is not None, rank.ready_s is not None) == (is_first, is_first) for rank in case.ranks)
        wanted = _WHOLE if isolation != "pool" else [*(_WHOLE[:2] if is_first else []), *_WHOLE[2:-1]]
        if isolation == "spawn":
            # A fresh interpreter imports the tests.
            wanted = [wanted[0], "import", *wanted[1:]]
        for rank in range(2):
            assert _phases(case, rank) == wanted


def test_ranks_that_are_threads_of_one_process(starter: Starter, tmp_path: Path) -> None:
    """They have one process, and phases of their own."""
    _, events = _run(starter, tmp_path, _TWO, "--dist-isolation=thread", "--dist-backend=threaded")
    _assert_ordered(events, 0)
    first, second = _records(events).values()
    assert len({rank.pid for rank in first.ranks} - {None}) == 1
    assert {rank.pid for rank in second.ranks} == {None}
    for case in (first, second):
        assert _outcomes(case) == ["passed", "passed"]
        for rank in range(2):
            assert _phases(case, rank)[-3:] == ["call", "teardown", "destroy"]


_CLASSES = """
    import dist_testing

    class TestProcesses(dist_testing.MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_processes(self): ...

    class TestThreads(dist_testing.MultiThreadedTestCase):
        world_size = 2

        def test_threads(self):
            assert self.rank == 0, "of rank 1"

    class TestGivesUp(dist_testing.MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()
            raise RuntimeError("after the ranks were asked for")

        def test_gives_up(self): ...
"""


def test_unittest_classes(starter: Starter, tmp_path: Path) -> None:
    """The other front end, with processes, with threads of the runner, and with ranks that are given up."""
    ended, events = _run(starter, tmp_path, _CLASSES)
    _assert_ordered(events, 1)
    cases = _records(events)
    assert _outcomes(cases["test_processes"]) == ["passed", "passed"], ended.log
    assert _phases(cases["test_processes"], 0)[-3:] == ["call", "teardown", "destroy"]
    threads = cases["test_threads"]
    assert _outcomes(threads)[1] == "raised"
    assert [_phases(threads, rank)[:2] for rank in range(2)] == [["start", "init"]] * 2
    given_up = cases["test_gives_up"]
    assert (given_up.status, given_up.world_size) == ("failed", 2)
    assert "after the ranks were asked for" in given_up.text


def test_workers_of_xdist_have_files_of_their_own(starter: Starter, tmp_path: Path) -> None:
    """Two processes that write one file destroy it."""
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    _run(starter, tmp_path, _TWO, "-p", "xdist", "-n", "2")
    controller = read_events(tmp_path / "events.jsonl.gz")
    _assert_ordered(controller, 0)
    assert [case.ranks for case in _records(controller).values()] == [(), ()]
    workers = [read_events(tmp_path / f"events.gw{number}.jsonl.gz") for number in range(2)]
    for events in workers:
        _assert_ordered(events, 0)
    assert sorted(name for events in workers for name in _records(events)) == ["test_sums[0]", "test_sums[1]"]


def test_a_file_that_cannot_be_written_ends_the_run_before_it_begins(starter: Starter, tmp_path: Path) -> None:
    """Not after an hour of tests."""
    ended = run_cases(starter, tmp_path, _TWO, "--dist-events=missing/events.jsonl")
    assert ended.code == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: --dist-events=missing/events.jsonl: " in ended.log
    assert "Write --dist-events=events.jsonl.gz, for example, or leave it out." in ended.log
    assert "Traceback" not in ended.log


def test_a_disk_that_fills_is_a_warning(starter: Starter, tmp_path: Path) -> None:
    """The tests have passed, and that is what counts."""
    ended = run_cases(starter, tmp_path, _TWO, "--dist-events=/dev/full")
    ended.check(passed="test_sums[0] test_sums[1]")
    assert ended.log.count("the event file /dev/full gets no more events: OSError: [Errno 28] No space left") == 1


def test_a_broken_sink_changes_no_verdict(starter: Starter, tmp_path: Path) -> None:
    """Every sink that is not essential may break at any event; the others hear all of them."""
    conftest = """
        import pytest
        from dist_testing.core.events.event import KINDS
        from dist_testing.ext import event_stream

        @pytest.hookimpl(trylast=True)
        def pytest_configure(config):
            for name, kind in KINDS.items():
                def broken(event):
                    raise ZeroDivisionError(event.to_wire()["event"])

                event_stream().subscribe(broken, kind, name=f"the sink of {name}")
    """
    write_file(tmp_path, "conftest.py", conftest)
    ended, events = _run(starter, tmp_path, _WAYS, "-s")
    ended.check(passed="test_passes test_warns", failed="test_raises test_is_killed test_hangs")
    assert len(ended.failures()) == 3
    _assert_ordered(events, 1)
    for kind in ("case_started", "world_ended", "case", "case_ended"):
        warning = f"dist_testing: the sink of {kind} gets no more events: ZeroDivisionError: {kind}."
        assert ended.log.count(warning) == 1, ended.log


def test_an_interrupted_case_ends_with_the_reason(starter: Starter, tmp_path: Path) -> None:
    """SIGTERM in the middle of a case: the file is whole, with what the ranks were doing."""
    source = """
        import threading
        import pytest
        from tests.support.bell import ring

        @pytest.mark.distributed(world_size=2)
        def test_waits(world):
            ring("waits")
            threading.Event().wait()
    """
    write_file(tmp_path, "test_cases.py", source)
    with Bell(tmp_path) as bell:
        child = start_pytest(starter, tmp_path, "--dist-events=events.jsonl", "test_cases.py", env=bell.env)
        bell.wait(2, child)
    child.send_signal(signal.SIGTERM)
    assert child.wait() == pytest.ExitCode.INTERRUPTED, child.log
    events = read_events(tmp_path / "events.jsonl")
    _assert_ordered([event for event in events if not isinstance(event, CaseStarted)], pytest.ExitCode.INTERRUPTED)
    (case,) = _records(events).values()
    assert _phases(case, 1)[-1] == "call"
    assert (case.status, case.message) == ("unfinished", "InterruptedRunError: the runner got SIGTERM (15)")


def test_what_was_told_before_a_kill_is_in_the_file(starter: Starter, tmp_path: Path) -> None:
    """The kernel's out-of-memory killer takes the runner, too, and leaves no time to write."""
    source = """
        import os
        import unittest
        import pytest

        @pytest.mark.distributed(world_size=2)
        def test_passes(world): ...

        class TestParts(unittest.TestCase):
            def test_dies(self):
                with self.subTest("passes"):
                    pass
                os.kill(os.getpid(), 9)
    """
    write_file(tmp_path, "test_cases.py", source)
    child = start_pytest(starter, tmp_path, "--dist-events=events.jsonl.gz", "test_cases.py")
    assert child.wait() == -signal.SIGKILL, child.log
    events = read_events(tmp_path / "events.jsonl.gz")
    assert _outcomes(_records(events)["test_passes"]) == ["passed", "passed"]
    last = events[-1]
    assert isinstance(last, CaseStarted)
    assert last.nodeid == "test_cases.py::TestParts::test_dies"


def test_bazel_keeps_the_events_of_a_run(starter: Starter, tmp_path: Path) -> None:
    """And of a file that the target's own arguments ask for, the same."""
    target = Target(tmp_path, {"test_cases.py": _WAYS})
    ended = target.run(starter, f"--dist-events={tmp_path / 'own.jsonl'}")
    assert ended.code == 1
    events = read_events(target.outputs / "events.jsonl.gz")
    _assert_ordered(events, 1)
    assert isinstance(events[0], RunStarted)
    assert (events[0].target, events[0].backend) == ("//pkg:cases_gloo", "gloo")
    assert set(events[0].versions or ()) >= {"python", "pytest"}
    assert events[0].host
    assert len(_records(events)) == 6
    # It was open before the results were written.
    assert read_events(tmp_path / "own.jsonl") == events[:-1]


def test_bazel_runs_without_a_file_of_events(starter: Starter, tmp_path: Path) -> None:
    """It is not what the target is judged by; the log says that it is missing."""
    target = Target(tmp_path, {"test_cases.py": _TWO})
    target.outputs.rmdir()
    ended = target.run(starter)
    assert ended.code == 0
    assert "no events are kept: " in target.warnings_file.read_text(encoding="utf-8")
