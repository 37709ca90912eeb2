"""`-p dist_testing.adopt.spawn`: a suite that calls `torch.multiprocessing` itself, unchanged."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.children import Ended, write_file
from tests.support.starter import Starter

_RIGHT = """
    test_all_reduce[1] test_all_reduce[3] test_ddp test_ddp_after_computation test_error_is_expected
    test_exit_is_expected test_signal_is_expected test_leaves test_without_join test_processes test_threads_and_handlers
    test_garbage_stays_in_its_process test_process_is_as_a_fresh_one test_process_has_arguments_by_pickle
    test_timeout_is_expected test_late_item[True] test_late_item[False] test_method
    test_fixture_has_ranks[1] test_fixture_has_ranks[2] test_ends_ranks_itself test_teardown_ends_it
    test_warns test_factory_ends_it[1] test_factory_ends_it[2]
"""
# Each test that fails, and what its report says.
_WRONG = {
    "test_fails": "rank 1 raised ValueError: planted",
    "test_dies": "rank 1 was killed by SIGKILL (9)",
    # The own harness of the suite passes these.
    "test_hole_exit_0": "rank 1 exited with code 0",
    "test_hole_no_join": "rank 1 raised ValueError: planted",
    "test_hole_exit_codes_unread": "1 of 2 process(es) failed: Process-",
    "test_hole_in_method": "1 of 1 process(es) failed: SpawnProcess-",
    "test_hole_exit_0_of_process": "(_ends_as_a_rank) called os._exit(0) before the end of its function.",
    "test_hole_process_left": "(_ends_as_a_rank) left processes behind: sleep 77 (pid ",
    "test_never_ends": "the test waits for a queue or a pipe; 1 of 1 process(es) failed: SpawnProcess-",
}


def _run(starter: Starter, folder: Path, *options: str) -> Ended:
    child = starter.start(["-m", "pytest", "-p", "dist_testing.adopt.spawn", *options, "test_suite.py"], folder)
    return Ended(child.wait(), child.log)


def test_a_suite_has_the_verdicts_of_its_own_harness_except_its_holes(starter: Starter, tmp_path: Path) -> None:
    """If this fails, what is right under its own harness fails, or a test passes although one of its ranks failed."""
    shutil.copy(Path(__file__).with_name("spawn_suite.py"), tmp_path / "test_suite.py")
    ended = _run(starter, tmp_path, "-rA")
    # What the ranks print is output of the test.
    log = ["printed by 1", "UserWarning: warned by 0", "UserWarning: warned by 7", "(_exits_late) ended by exit code 3"]
    ended.check(passed=_RIGHT, failed=" ".join(_WRONG), error="test_hole_after_the_end", log=log)
    failures = ended.failures()
    assert not [name for name, said in _WRONG.items() if said not in failures[name]], ended.log
    starter.wait_nothing_left(10.0)


def test_what_cannot_be_as_in_a_fresh_interpreter_is_told(starter: Starter, tmp_path: Path) -> None:
    """If this fails, ranks inherit a process group, or a suite that registers operators of torch cannot run."""
    source = """
import multiprocessing

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# torch refuses a second import in a process.
OPERATORS = torch.library.Library("planted", "DEF")
OPERATORS.define("same(Tensor x) -> Tensor")
OPERATORS.impl("same", lambda x: x.clone(), "CPU")


def leave(rank):
    assert not dist.is_initialized()


def call(values):
    torch.ops.planted.same(values)


def test_with_a_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mp.spawn(leave, nprocs=1)
    dist.destroy_process_group()
    mp.spawn(leave, nprocs=1)


def test_operators():
    process = multiprocessing.get_context("spawn").Process(target=call, args=(torch.ones(2),))
    process.start()
    process.join()
    assert process.exitcode == 0
"""
    write_file(tmp_path, "test_suite.py", source)
    ended = _run(starter, tmp_path, "-s")
    assert ended.code == 0, ended.log
    assert "torch's own spawn runs it, because a process group is initialised" in ended.log
    assert "their import in a new process has failed: RuntimeError: Only a single TORCH_LIBRARY" in ended.log
