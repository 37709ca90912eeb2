"""The debugger on one rank: it has the terminal, and the others wait as long as necessary."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.children import Target, assert_no_folder_left, run_cases, start_pytest, write_file
from tests.support.starter import Starter
from tests.support.terminal import Terminal

_PROMPT = "(Pdb) "
_BREAKPOINT = """
    import pytest
    import dist_testing
    import torch.distributed as dist

    pytestmark = pytest.mark.distributed(world_size=3)

    @pytest.mark.distributed(timeout=1)
    def test_stops(world):
        secret = 40 + world.rank
        breakpoint()
        dist.barrier()

    def test_next(world):
        world.barrier()
"""


def test_breakpoint_of_one_rank(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the case's or the group's limit ends the prompt while the user thinks."""
    write_file(tmp_path, "test_cases.py", _BREAKPOINT)
    with Terminal(tmp_path) as terminal:
        child = start_pytest(starter, tmp_path, "-rA", "--dist-debug-rank=1", "test_cases.py", env=terminal.env)
        shown = terminal.wait(_PROMPT, child)
        assert "test_stops()" in shown
        terminal.type("p secret")
        assert "41" in terminal.wait(_PROMPT, child)
        terminal.type("import time; time.sleep(1.5)")
        terminal.wait(_PROMPT, child)
        terminal.type("c")
        assert child.wait() == 0, child.log
    assert "2 passed" in child.log
    assert_no_folder_left(tmp_path)


def test_quitting_ends_the_session(starter: Starter, tmp_path: Path) -> None:
    """If this fails, quitting does not end the session as in plain pytest, or waiting ranks are not victims."""
    write_file(tmp_path, "test_cases.py", _BREAKPOINT)
    with Terminal(tmp_path) as terminal:
        child = start_pytest(starter, tmp_path, "-rA", "--dist-debug-rank=1", "test_cases.py", env=terminal.env)
        terminal.wait(_PROMPT, child)
        terminal.type("q")
        assert child.wait() == pytest.ExitCode.INTERRUPTED, child.log
    assert "Quitting debugger" in child.log
    assert "test_next" not in child.log.partition("short test summary")[2]
    assert "rank 1 of 3 failed first" in child.log
    assert "Victims: " in child.log
    assert_no_folder_left(tmp_path)


def test_post_mortem_of_a_rank_works_if_all_have_failed(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the other ranks, which fail at the same moment, take the prompt away."""
    source = """
        import pytest
        import dist_testing

        @pytest.mark.distributed(world_size=3)
        def test_fails(world):
            left = [1, world.rank]
            assert left == [1, 9]

        @pytest.mark.distributed(world_size=3)
        def test_next(world): ...

        class UnittestTest(dist_testing.MultiProcessTestCase):
            world_size = 2

            def test_fails(self):
                self.fail("no prompt for this in the runner")
    """
    write_file(tmp_path, "test_cases.py", source)
    with Terminal(tmp_path) as terminal:
        child = start_pytest(
            starter, tmp_path, "-rA", "--pdb", "--dist-debug-rank=1", "test_cases.py", env=terminal.env
        )
        assert "assert [1, 1] == [1, 9]" in terminal.wait(_PROMPT, child)
        terminal.type("import time; time.sleep(1); print('left is', left)")
        assert "left is [1, 1]" in terminal.wait(_PROMPT, child)
        terminal.type("c")
        assert child.wait() == pytest.ExitCode.TESTS_FAILED, child.log
    assert "2 failed, 1 passed" in child.log
    assert_no_folder_left(tmp_path)


def test_breakpoint_without_a_terminal_is_a_clear_error(starter: Starter, tmp_path: Path) -> None:
    """If this fails, an invisible prompt waits until the deadline, or reads the end of its input as an answer."""
    ended = run_cases(starter, tmp_path, _BREAKPOINT)
    assert ended.outcomes()["test_stops"] == "FAILED"
    assert "which has no terminal" in ended.log
    assert "for this rank: pytest --dist-debug-rank=" in ended.log


def test_breakpoint_under_bazel_names_the_target_to_run(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the user gets a pytest command, although only `bazel run` of the target has the terminal."""
    ended = Target(tmp_path, {"test_cases.py": _BREAKPOINT}, world_size=3).run(starter)
    assert "for this rank: bazel build //pkg:cases_gloo && bazel-bin/pkg/cases_gloo --dist-debug-rank=" in ended.log


@pytest.mark.parametrize("option", ["--pdb", "--trace"])
def test_prompts_need_a_rank(starter: Starter, tmp_path: Path, option: str) -> None:
    """If this fails, pytest's own options open a prompt on no rank, or on all."""
    ended = run_cases(starter, tmp_path, _BREAKPOINT, option)
    assert ended.code == pytest.ExitCode.USAGE_ERROR, ended.log
    assert f"{option}: test_cases.py::test_stops runs on ranks" in ended.log
    assert "--dist-debug-rank=0" in ended.log


def test_rank_outside_the_world_and_threads_are_refused(starter: Starter, tmp_path: Path) -> None:
    """If this fails, no rank ever gets the terminal."""
    write_file(tmp_path, "test_cases.py", _BREAKPOINT)
    for arguments, said in (
        (["--dist-debug-rank=3"], "--dist-debug-rank=3: test_cases.py::test_stops runs on 3 ranks."),
        (["--dist-debug-rank=1", "--dist-backend=threaded"], 'test_stops has isolation "thread"'),
    ):
        with Terminal(tmp_path) as terminal:
            child = start_pytest(starter, tmp_path, *arguments, "test_cases.py", env=terminal.env)
            assert child.wait() == pytest.ExitCode.USAGE_ERROR, child.log
        assert said in child.log


_OWN_BACKEND = """
    from pathlib import Path
    import torch.distributed as dist

    def create(store, rank, size, timeout):
        if rank == 1:
            breakpoint()
        return dist.ProcessGroupGloo(store, rank, size, timeout)

    dist.Backend.register_backend("foreign", create, devices=["cpu"])

    def pytest_dist_backends():
        return Path(__file__).parent / "backend.bzl"
"""
_DECLARATION = """
    load("@dist_testing//dist_testing:backends.bzl", "declare_backend")

    FOREIGN = declare_backend(
        name = "foreign",
        torch_backend = "foreign",
        device = "cpu",
        register_module = "own",
    )
"""


def test_one_cell_of_the_conformance_kit(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a backend's author has no way to stop in the call that the kit makes (docs/conformance.md)."""
    write_file(tmp_path, "own.py", _OWN_BACKEND)
    write_file(tmp_path, "backend.bzl", _DECLARATION)
    cell = "dist_testing.conformance.cells_test::test_cell[barrier/waits_for_all/w2]"
    options = ["-s", "-p", "conftest", "-p", "own", "--dist-backend=foreign", "--dist-debug-rank=1", "--pyargs", cell]
    with Terminal(tmp_path) as terminal:
        child = start_pytest(starter, tmp_path, *options, env=terminal.env)
        assert "create()" in terminal.wait(_PROMPT, child)
        terminal.type("p size + 40")
        assert "42" in terminal.wait(_PROMPT, child)
        terminal.type("c")
        assert child.wait() == 0, child.log
    assert "1 passed" in child.log
