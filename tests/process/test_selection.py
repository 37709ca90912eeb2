"""Selection by need in sessions as users start them: limits, computed marks and the table of needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dist_testing.report.__main__ import main
from tests.support.children import run_cases, write_file
from tests.support.starter import Starter

_CASES = """
    import unittest
    from pathlib import Path
    import pytest
    import dist_testing
    from dist_testing.compat.common_distributed import (
        MultiProcContinuousTest, MultiProcessTestCase, MultiThreadedTestCase, get_required_world_size,
        nccl_skip_if_lt_x_gpu, requires_nccl, requires_world_size, skip_if_lt_x_gpu, skip_if_no_gpu,
    )

    @pytest.fixture(autouse=True)
    def has_run():
        Path("has_run").touch()

    def test_plain(): ...

    @skip_if_lt_x_gpu(2)
    def test_plain_on_gpus(): ...

    @pytest.mark.distributed(world_size=[2, 3])
    def test_sizes(world, world_size):
        assert world.size == world_size

    @pytest.mark.distributed(world_size=2, isolation="spawn")
    def test_spawned(world): ...

    @pytest.mark.distributed(backends=["nccl"], world_size=2)
    def test_nccl(world): ...

    # A conftest marks it.
    def test_late(world):
        assert world.size == 3

    @pytest.mark.distributed(world_size=2, nodes=2)
    @nccl_skip_if_lt_x_gpu("nccl", 3)
    def test_nodes(world): ...

    class TestNative(dist_testing.MultiProcessTestCase):
        world_size = 2
        nodes = 2

        def test_native(self): ...

        @skip_if_lt_x_gpu(4)
        def test_decorated(self): ...

        @skip_if_lt_x_gpu(4, allow_cpu=True)
        def test_on_cpus_too(self): ...

        @skip_if_no_gpu
        def test_no_gpu(self): ...

    @requires_nccl()
    class TestTorch(MultiProcessTestCase):
        @property
        def world_size(self):
            return get_required_world_size(self, 2)

        def test_default(self): ...

        @requires_world_size(6)
        def test_required(self): ...

    class TestThreads(MultiThreadedTestCase):
        world_size = 3

        def test_threads(self):
            assert 0 <= self.rank < 3

    class TestContinuous(MultiProcContinuousTest):
        world_size = 2

        @classmethod
        def backend_str(cls):
            return "nccl"

        def test_continuous(self): ...

    class TestUnknown(MultiProcessTestCase):
        @property
        def world_size(self):
            raise RuntimeError("the size is not known")

        def test_unknown(self): ...

    class TestNegative(MultiProcessTestCase):
        world_size = -3

        def test_negative(self): ...

    class TestUnittest(unittest.TestCase):
        def test_alone(self): ...
"""
_CONFTEST = """
    import pytest

    def pytest_collection_modifyitems(items):
        for item in items:
            if item.name == "test_late":
                item.add_marker(pytest.mark.distributed(world_size=3))
"""
# Last part of the node id -> backend, ranks, GPUs, nodes.
_ON_GLOO = {
    "test_plain": ("", 1, 0, 1),
    "test_plain_on_gpus": ("", 1, 2, 1),
    "test_sizes[world_size=2]": ("gloo", 2, 0, 1),
    "test_sizes[world_size=3]": ("gloo", 3, 0, 1),
    "test_spawned": ("gloo", 2, 0, 1),
    "test_late": ("gloo", 3, 0, 1),
    "test_nodes": ("gloo", 2, 3, 2),
    "test_native": ("gloo", 2, 0, 2),
    "test_decorated": ("gloo", 2, 4, 2),
    "test_on_cpus_too": ("gloo", 2, 0, 2),
    "test_no_gpu": ("gloo", 2, 2, 2),
    "test_default": ("nccl", 2, 0, 1),
    "test_required": ("nccl", 6, 6, 1),
    "test_threads": ("threaded", 3, 0, 1),
    "test_continuous": ("nccl", 2, 2, 1),
    "test_unknown": ("", None, None, 1),
    "test_negative": ("", None, None, 1),
    "test_alone": ("", 1, 0, 1),
}


def test_the_table_of_needs(starter: Starter, tmp_path: Path) -> None:
    """If this fails, people plan jobs by needs that are not those of the tests, or the table costs a run."""
    write_file(tmp_path, "conftest.py", _CONFTEST)
    ended = run_cases(starter, tmp_path, _CASES, "-q", "--dist-needs-json")
    told = [json.loads(line) for line in ended.log.splitlines() if line.startswith("{")]
    found = {
        one["case"].rpartition("::")[2]: tuple(one[name] for name in ("backend", "ranks", "gpus", "nodes"))
        for one in told
    }
    assert found == _ON_GLOO
    assert "18/19 tests collected (1 deselected)" in ended.log
    assert ended.code == 0

    options = ("--dist-backend=nccl", "--dist-min-gpus=2", "--dist-max-world-size=2", "--dist-needs")
    ended = run_cases(starter, tmp_path, _CASES, "-q", *options, "-k", "plain or nccl")
    assert [line.split() for line in ended.log.splitlines() if line.startswith(("case", "test_cases"))] == [
        ["case", "backend", "ranks", "GPUs", "nodes"],
        ["test_cases.py::test_plain_on_gpus", "-", "1", "2", "1"],
        ["test_cases.py::test_nccl", "nccl", "2", "2", "1"],
    ]
    assert not (tmp_path / "has_run").exists()


def test_limits_and_marks_choose_the_tests_that_run(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a job runs tests that it has no GPUs for, or leaves out tests that no other job has."""
    write_file(tmp_path, "conftest.py", _CONFTEST)
    options = ("--dist-max-gpus=0", "--dist-min-world-size=2", "--deselect=test_cases.py::TestNative")
    ended = run_cases(starter, tmp_path, _CASES, *options)
    # It needs a build of torch with NCCL, and no GPU.
    default = "test_default" if torch.distributed.is_nccl_available() else ""
    passed = f"test_sizes[world_size=2] test_sizes[world_size=3] test_spawned test_late test_threads {default}"
    # The tests whose need is unknown show why.
    ended.check(passed=passed, failed="test_unknown test_negative")
    assert "the size is not known" in ended.log
    # One for another backend, four of the class by `--deselect`, and six by the limits. One is skipped without NCCL.
    assert "11 deselected" in ended.log

    expression = "gpus_0 and world_size_ge_2 and not world_size_ge_3 or gpus_ge_6"
    # "gpus" is in the names of marks, too.
    ended = run_cases(
        starter, tmp_path, _CASES, "--strict-markers", "-m", expression, "-k", "sizes or gpus or required"
    )
    assert ended.outcomes().keys() | {"test_required"} == {"test_sizes[world_size=2]", "test_required"}
    assert "17 deselected" in ended.log


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--dist-min-gpus=0"], "--dist-min-gpus=0: expected a number from 1 to"),
        (
            ["--dist-min-world-size=4", "--dist-max-world-size=2"],
            "--dist-min-world-size=4 with --dist-max-world-size=2",
        ),
        (["--dist-needs", "-p", "no:terminal"], "--dist-needs with -p no:terminal"),
        (["-m", "gpus_ge_four", "--strict-markers"], "Unknown marker"),
    ],
)
def test_bad_input_is_a_clear_text(starter: Starter, tmp_path: Path, options: list[str], said: str) -> None:
    """If this fails, a typing error selects other tests, in silence."""
    write_file(tmp_path, "test_plain.py", "def test_plain(): pass")
    child = starter.start(["-m", "pytest", "-p", "dist_testing.core.pytest.plugin", *options], tmp_path)
    assert child.wait() == 4, child.log
    assert said in child.log
    assert "Traceback" not in child.log


def test_a_case_that_failed_for_its_hardware_did_not_run(
    starter: Starter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If this fails, a job that was promised GPUs, and has none, counts as one that runs the tests for GPUs."""
    cases = """
        import pytest

        @pytest.mark.distributed(world_size=2, backends=["nccl"])
        @pytest.mark.parametrize("number", [1, 2])
        def test_gpus(world, number): ...
    """
    file, events = tmp_path / "promised.xml", tmp_path / "events.jsonl"
    options = ("--dist-backend=nccl", "--dist-on-missing=fail", f"--junitxml={file}", f"--dist-events={events}")
    assert set(run_cases(starter, tmp_path, cases, *options).outcomes().values()) == {"FAILED"}
    for results in (file, events):
        assert main(["ran-nowhere", str(results)]) == 1
        assert capsys.readouterr().out == (
            f"{results.name}: has run 0 of 2 cases\n2 of 2 cases ran in no job\n\n"
            "test_cases.test_gpus[1]\ntest_cases.test_gpus[2]\n"
            f"    {results.name}: Need at least 2 CUDA devices (found 0)\n"
        )
