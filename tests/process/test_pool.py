"""Worker pools for a class or module: the same processes, and still one failure costs one case."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dist_testing.core.ground.outcomes import Status
from tests.support.children import run_cases, write_file
from tests.support.starter import Starter
from tests.support.worlds import engine_for, run


def test_a_pool_lives_for_a_class_and_is_replaced_after_a_failure(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a failure costs more than its own case, or passing cases start new ranks."""
    source = """
        import os
        import random
        import subprocess
        import sys
        import threading
        from pathlib import Path
        import pytest
        import torch
        import torch.distributed as dist

        NOTES = Path.cwd()

        def note(world, name):
            numbers = f"{random.random()} {torch.rand(1).item()}"
            (NOTES / f"note-{name}-{world.rank}").write_text(f"{os.getpid()} {numbers}")
            total = torch.ones(1)
            dist.all_reduce(total)
            assert total.item() == world.size
            assert world.store.add("noted", 1) <= world.size, "a key of an earlier case"

        @pytest.mark.distributed(world_size=2, isolation="pool")
        class TestPooled:
            def test_1(self, world):
                note(world, "1")

            def test_2(self, world, tmp_path):
                note(world, "2")

            def test_raises(self, world):
                if world.rank == 1:
                    raise ValueError("planted")
                dist.barrier()

            def test_3(self, world):
                note(world, "3")

            def test_dies(self, world):
                if world.rank == 0:
                    os._exit(0)
                dist.barrier()

            def test_4(self, world):
                note(world, "4")

            def test_skips(self, world):
                pytest.skip("all of them")

            def test_5(self, world):
                note(world, "5")

            def test_6(self, world):
                note(world, "6")

            def test_7(self, world):
                note(world, "7")

            @pytest.mark.distributed(timeout=1.5)
            def test_hangs(self, world):
                if world.rank == 1:
                    threading.Event().wait()
                dist.barrier()

        @pytest.mark.distributed(world_size=3, isolation="pool")
        class TestOther:
            def test_8(self, world):
                note(world, "8")

        # The functions of a module share a pool.
        def test_9(world):
            note(world, "9")

        def test_10(world):
            note(world, "10")

        def test_leaves_a_child(world):
            if world.rank == 0:
                subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)

        @pytest.mark.distributed(timeout=1e6)
        def test_has_a_longer_limit(world):
            note(world, "11")
            gloo = dist.group.WORLD._get_backend(torch.device("cpu"))
            assert gloo.options._timeout.total_seconds() == 9e5

        def test_12(world):
            note(world, "12")

        for function in (test_9, test_10, test_has_a_longer_limit, test_12, test_leaves_a_child):
            pytest.mark.distributed(world_size=2, isolation="pool")(function)
    """
    ended = run_cases(starter, tmp_path, source)
    failed = {name for name, outcome in ended.outcomes().items() if outcome == "FAILED"}
    assert failed == {"test_raises", "test_dies", "test_hangs", "test_leaves_a_child"}, ended.log
    assert "12 passed" in ended.log
    assert "rank 1 raised ValueError: planted" in ended.log
    assert "rank 0 exited with code 0 in call, without finishing the test" in ended.log
    hang = ended.failures()["test_hangs"]
    # The group is as old as the pool, so that its limit is not that of the case.
    assert re.search(r"rank 1 has not reached the call \(test_cases\.py:\d+\)", hang), hang
    assert re.search(r"rank 0 waits for it in barrier #\d+ of the default group \(test_cases\.py:\d+\)", hang), hang
    assert "time.sleep(1000)" in ended.failures()["test_leaves_a_child"]
    notes = {path.name.removeprefix("note-"): path.read_text().split() for path in tmp_path.glob("note-*")}
    pids = {name: int(note[0]) for name, note in notes.items()}
    for rank in range(2):
        assert pids[f"1-{rank}"] == pids[f"2-{rank}"], "the same process after a pass"
        assert pids[f"6-{rank}"] == pids[f"7-{rank}"]
        assert pids[f"9-{rank}"] == pids[f"10-{rank}"] != pids[f"11-{rank}"] == pids[f"12-{rank}"]
        assert len({pids[f"{number}-{rank}"] for number in (1, 3, 4, 6, 8)}) == 5, "a new process after a failure"
        assert pids[f"4-{rank}"] != pids[f"5-{rank}"], "a new process after a skip"
        drawn = {tuple(notes[f"{number}-{rank}"][1:]) for number in (1, 2)}
        assert len(drawn) == 1, "a case's random numbers do not depend on the cases before it"


def test_leaked_state_fails_the_case_that_leaked_it(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the next case fails, and the case that left the state is not suspected.

    tests/unit/test_state.py has more settings of Python and torch.
    """
    source = """
        import os
        import threading
        import pytest
        import torch
        import torch.distributed as dist

        KEPT = []

        def leave_environment(): os.environ["LEFT_BEHIND"] = "1"
        def change_directory(): os.chdir("/")
        def leave_thread(): threading.Thread(target=threading.Event().wait, name="left", daemon=True).start()
        def change_dtype(): torch.set_default_dtype(torch.float64)
        def change_device(): torch.set_default_device("meta")
        def change_threads(): torch.set_num_threads(torch.get_num_threads() + 1)
        def switch_gradients_off(): torch.set_grad_enabled(False)
        def leave_group(): KEPT.append(dist.new_group())
        def become_deterministic(): torch.use_deterministic_algorithms(True)
        def leave_file(): KEPT.append(open(__file__))
        def close_descriptor(): os.close(0)

        CHANGES = [value for name, value in list(globals().items()) if name.startswith(("leave", "change", "switch",
                   "become", "close"))]

        @pytest.mark.distributed(world_size=2, isolation="pool")
        class TestState:
            @pytest.mark.parametrize("change", CHANGES)
            def test_leaves(self, world, change):
                change()

            def test_undoes(self, world, monkeypatch):
                monkeypatch.setenv("LEFT_BEHIND", "1")
                group = dist.new_group()
                # A group that one rank destroys while another still connects is no clean undo.
                world.barrier()
                dist.destroy_process_group(group)
                with torch.no_grad(), open(__file__):
                    torch.rand(1)

            def test_finds_nothing(self, world):
                assert "LEFT_BEHIND" not in os.environ
                assert torch.get_default_dtype() is torch.float32

            # A suite that has always set a variable of a library names it in its project.
            def test_may_set(self, world):
                os.environ["TOKENIZERS_PARALLELISM"] = os.environ["OF_LIBRARY_A"] = "1"
    """
    ended = run_cases(starter, tmp_path, source, "-o", "dist_pool_keeps=env:TOKENIZERS_PARALLELISM env:OF_LIBRARY_*")
    outcomes = ended.outcomes()
    passed = {outcomes.pop(name) for name in ("test_undoes", "test_finds_nothing", "test_may_set")}
    assert passed == {"PASSED"}, ended.log
    assert set(outcomes.values()) == {"FAILED"}
    reports = {
        report.partition(" (world of")[0].rpartition("[")[2].rstrip("]"): report for report in ended.failures().values()
    }
    for change, said in {
        "leave_environment": "environment variable(s) LEFT_BEHIND",
        "change_directory": " to /.",
        "leave_thread": "running thread(s) left",
        "change_dtype": "default dtype, from torch.float32 to torch.float64",
        "change_device": "default device, from cpu to meta",
        "change_threads": "intra-op threads, from 1 to 2",
        "switch_gradients_off": "gradient mode, from True to False",
        "leave_group": "process groups, from 1 to 2",
        "become_deterministic": "deterministic algorithms, from False to True",
        "leave_file": f"open file(s) {tmp_path}/test_cases.py",
        "close_descriptor": "closed descriptor(s) 0",
    }.items():
        assert said in reports[change], change
        assert "StateLeakError: changed and not undone" in reports[change]
        assert "use the default isolation, which gives each test new ranks" in reports[change]


def test_world_of_another_size_in_a_pool_is_refused(starter: Starter, tmp_path: Path) -> None:
    """If this fails, cases of a pool run on a world of the wrong size."""
    source = """
        import pytest

        @pytest.mark.distributed(world_size=2, isolation="pool")
        class TestSizes:
            def test_two(self, world): ...

            @pytest.mark.distributed(world_size=3)
            def test_three(self, world): ...
    """
    ended = run_cases(starter, tmp_path, source)
    assert ended.code == pytest.ExitCode.USAGE_ERROR, ended.log
    assert "test_three: world_size = 3, but the pool of test_cases.py::TestSizes has 2 ranks" in ended.log
    assert "passed" not in ended.log
    assert "Traceback" not in ended.log


def test_pool_that_does_not_end_is_reported_within_bounds(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a clean-up that never ends stops the run, passes, or harms the next pool."""
    conftest = """
        from dist_testing.core.engine import engine

        # A user's groups may take half a minute; here one never ends.
        engine._POOL_END_LIMIT_S = 1.0
    """
    write_file(tmp_path, "conftest.py", conftest)
    source = """
        import threading
        import pytest
        import torch.distributed as dist

        pytestmark = pytest.mark.distributed(world_size=2, isolation="pool")

        class TestHangs:
            def test_passes(self, world):
                if world.rank == 1:
                    world.finish = lambda: threading.Event().wait()

        class TestRaises:
            def test_passes(self, world):
                if world.rank == 1:
                    world.finish = lambda: 1 / 0

        class TestNext:
            def test_next(self, world):
                dist.barrier()

        class TestLonger:
            def test_passes(self, world):
                if world.rank == 1:
                    world.finish = lambda: 1 / 0

            # It needs new ranks, whose groups wait longer.
            @pytest.mark.distributed(timeout=1000)
            def test_longer(self, world): ...

        class TestLast:
            def test_passes(self, world):
                if world.rank == 1:
                    world.finish = lambda: 1 / 0
    """
    ended = run_cases(starter, tmp_path, source)
    assert ended.code == pytest.ExitCode.TESTS_FAILED, ended.log
    assert "1 failed, 5 passed, 3 errors" in ended.log
    assert "test_longer: not run: the ranks of the pool test_cases.py::TestLonger did not end well" in ended.log
    assert "the ranks of the pool test_cases.py::TestHangs did not end well: rank 1 was still in destroy" in ended.log
    for name in ("TestRaises", "TestLast"):
        assert f"the ranks of the pool test_cases.py::{name} did not end well: rank 1 raised ZeroDivision" in ended.log


def test_a_pool_serves_worlds_of_its_size_only() -> None:
    """If this fails, a class whose tests have different sizes silently runs on too few ranks."""
    with engine_for({"nothing": lambda _, __: None}) as engine:
        for size in (2, 3, 2):
            result = run(engine, "nothing", world_size=size, isolation="pool", pool="class")
            assert (result.verdict.status, len(result.outcomes)) == (Status.PASSED, size), result
        assert engine.end_pool() == ""
