"""`-s` and `--capture=tee-sys`: the output of ranks, shown while they print it.

Tests that compare all output make no default group: gloo of torch 2.10 prints a line when a group has connected.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.support.bell import Bell
from tests.support.children import run_cases, start_pytest, write_file
from tests.support.starter import LIMIT_S, Starter

_MANY = 2000


def test_every_line_is_complete_in_order_and_has_its_rank(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a line of a rank is lost, has no rank, or is mixed with another's.

    The output comes from Python's print, from a child process and from a descriptor.
    """
    source = f"""
        import os
        import subprocess
        import sys
        import pytest

        @pytest.mark.distributed(world_size=3, init=False)
        def test_prints(world):
            for number in range({_MANY}):
                print(f"{{world.rank}}-{{number}}-" + "x" * 50)
            os.write(2, b"by descriptor\\n")
            subprocess.run([sys.executable, "-S", "-c", "print('of a child')"], check=True)
            sys.stdout.write("without an end")
    """
    ended = run_cases(starter, tmp_path, source, "-s")
    assert ended.outcomes() == {"test_prints": "PASSED"}, ended.log
    lines = ended.log.splitlines()
    for rank in range(3):
        own = [line.removeprefix(f"[rank {rank}] ") for line in lines if line.startswith(f"[rank {rank}] ")]
        numbered = [f"{rank}-{number}-{'x' * 50}" for number in range(_MANY)]
        assert own == [*numbered, "by descriptor", "of a child", "without an end"]
    assert not [line for line in lines if "xxxx" in line and not line.startswith("[rank ")]


def test_output_appears_while_the_test_runs(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a user who waits for a hanging test sees its output only at the end."""
    source = """
        import pytest
        from tests.support.bell import ring

        @pytest.mark.distributed(world_size=2)
        def test_waits(world):
            print(f"now at {world.rank}")
            ring("printed")
            with open("go_on"):
                pass
    """
    write_file(tmp_path, "test_cases.py", source)
    go_on = tmp_path / "go_on"
    os.mkfifo(go_on)
    with Bell(tmp_path) as bell:
        child = start_pytest(starter, tmp_path, "-s", "test_cases.py", env=bell.env)
        bell.wait(2, child)
        # Nothing reports when the runner has printed, and the runner has no other work.
        deadline = time.monotonic() + LIMIT_S
        while not all(f"[rank {rank}] now at {rank}\n" in child.log for rank in range(2)):
            assert time.monotonic() < deadline, child.log
            time.sleep(0.02)
        # Open for both ranks, whenever they open it.
        held = os.open(go_on, os.O_RDWR)
        try:
            assert child.wait() == 0, child.log
        finally:
            os.close(held)


def test_pools_unittest_and_setup_show_are_live_too_and_a_crash_loses_nothing(starter: Starter, tmp_path: Path) -> None:
    """If this fails, output of these is not live, or the last words before a crash, the most useful ones, are lost."""
    source = """
        import os
        import pytest
        import dist_testing

        @pytest.mark.distributed(world_size=2, init=False)
        def test_dies(world):
            if world.rank == 1:
                os.write(1, b"x\\xff\\n")
                print("last words", end="", flush=True)
                os.kill(os.getpid(), 9)
            world.barrier()

        @pytest.mark.distributed(world_size=2, isolation="pool")
        class TestPool:
            def test_first(self, world):
                print("first")

            def test_second(self, world):
                print("second")

        class UnittestTest(dist_testing.MultiProcessTestCase):
            world_size = 2

            def test_method(self):
                print("of a method")
    """
    ended = run_cases(starter, tmp_path, source, "--capture=tee-sys", "--setup-show")
    ended.check(failed="test_dies", passed="test_first test_second test_method")
    assert "x\ufffd\nlast words" in ended.log.partition("output of rank 1:")[2]
    for rank in range(2):
        own = [line for line in ended.log.splitlines() if line.startswith(f"[rank {rank}] ")]
        for text in ("first", "second", "of a method", *(["x\ufffd", "last words"] if rank else [])):
            assert sum(line.endswith(text) for line in own) == 1, ended.log
        assert f"[rank {rank}]         SETUP    F world" in own
