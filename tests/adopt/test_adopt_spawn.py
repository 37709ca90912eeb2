"""`-p dist_testing.adopt.spawn`: a suite that calls `torch.multiprocessing` itself, unchanged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.starter import Starter

_SUITE = Path(__file__).with_name("spawn_suite.py")


@pytest.fixture(scope="module")
def outcomes(starters: Starter, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run the suite with the adapter. Under its own harness it has the same outcomes, except its holes."""
    folder = tmp_path_factory.mktemp("suite")
    shutil.copy(_SUITE, folder / "test_suite.py")
    child = starters.start(["-m", "pytest", "-p", "dist_testing.adopt.spawn", "-rA", "test_suite.py"], folder)
    assert child.wait() == 1, child.log
    starters.wait_nothing_left(10.0)
    lines = [line for line in child.log.splitlines() if line.startswith(("PASSED ", "FAILED ", "ERROR ", "SKIPPED "))]
    found = {line.split(" - ")[0].rpartition("::")[2]: line for line in lines}
    found["log"] = child.log
    return found


def test_what_is_right_passes(outcomes: dict[str, str]) -> None:
    """If this fails, a suite that is right under its own harness fails on the engine."""
    expected = [
        "test_all_reduce[1]",
        "test_all_reduce[3]",
        "test_ddp",
        "test_ddp_after_computation",
        "test_error_is_expected",
        "test_exit_is_expected",
        "test_signal_is_expected",
        "test_leaves",
        "test_without_join",
        "test_processes",
        "test_threads_and_handlers",
        "test_garbage_stays_in_its_process",
        "test_process_is_as_a_fresh_one",
        "test_process_has_arguments_by_pickle",
        "test_timeout_is_expected",
        "test_late_item[True]",
        "test_late_item[False]",
        "test_method",
    ]
    passed = [name for name, line in outcomes.items() if line.startswith("PASSED ")]
    assert passed == expected, outcomes["log"]
    # What the ranks print is output of the test.
    assert "printed by 1" in outcomes["log"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("test_fails", "rank 1 raised ValueError: planted"),
        ("test_dies", "rank 1 was killed by SIGKILL (9)"),
        # The own harness of the suite passes these.
        ("test_hole_exit_0", "rank 1 exited with code 0"),
        ("test_hole_no_join", "rank 1 raised ValueError: planted"),
        ("test_hole_exit_codes_unread", "1 of 2 process(es) failed: Process-"),
        ("test_hole_in_method", "1 of 1 process(es) failed: SpawnProcess-"),
        ("test_hole_exit_0_of_process", "(_ends_as_a_rank) called os._exit(0) before the end of its function."),
        ("test_hole_process_left", "(_ends_as_a_rank) left processes behind: sleep 77 (pid "),
        ("test_never_ends", "the test waits for a queue or a pipe; 1 of 1 process(es) failed: SpawnProcess-"),
    ],
)
def test_what_is_wrong_fails(outcomes: dict[str, str], name: str, said: str) -> None:
    """If this fails, a test passes although one of its ranks has failed."""
    assert outcomes[name].startswith("FAILED "), outcomes["log"]
    assert said in outcomes["log"]


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
    (tmp_path / "test_suite.py").write_text(source, encoding="utf-8")
    child = starter.start(["-m", "pytest", "-s", "-p", "dist_testing.adopt.spawn", "test_suite.py"], tmp_path)
    assert child.wait() == 0, child.log
    assert "torch's own spawn runs it, because a process group is initialised" in child.log
    assert "their import in a new process has failed: RuntimeError: Only a single TORCH_LIBRARY" in child.log
