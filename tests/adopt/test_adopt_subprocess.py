"""`-p dist_testing.adopt.subprocess`: a suite that starts torchrun for each test, unchanged."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dist_testing.adopt.launch_host import end_with
from dist_testing.adopt.subprocess import launch_in
from dist_testing.core.ground.errors import InterruptedRunError
from tests.support.children import Ended, write_file
from tests.support.starter import Starter

_HERE = Path(__file__).parent


def test_a_suite_has_the_verdicts_of_its_own_harness(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the script of a launcher gets other arguments, streams or verdicts than torchrun gives it."""
    shutil.copy(_HERE / "launch_suite.py", tmp_path / "test_suite.py")
    shutil.copytree(_HERE / "scripts", tmp_path / "scripts")
    child = starter.start(["-m", "pytest", "-p", "dist_testing.adopt.subprocess", "-rA", "test_suite.py"], tmp_path)
    has_torchrun = Path(sys.executable).with_name("torchrun").exists()
    Ended(child.wait(), child.log).check(
        passed="test_run test_launch test_asyncio test_failure_is_expected[raise] test_failure_is_expected[signal] "
        "test_end_of_group[group] test_end_of_group[session] test_time_is_over test_terminate test_wrong_option "
        f"test_other_commands {'test_check_call' * has_torchrun}",
        failed="test_fails",
        # One report for both ranks: the culprit, and what happened to the other rank.
        log=["rank 1 exited with code 7 in call", "Victims: rank 0"],
    )


_SKIPS = """
    import subprocess
    import sys


    def test_imports():
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "script.py"]
        ended = subprocess.run(command, text=True, capture_output=True)
        assert ended.returncode == 1
        assert "all ranks have skipped" in ended.stderr
        # As under torchrun, the streams of ranks have no buffer, so a line may come between a text and its end of line.
        assert ended.stdout.replace("\\n", "") == "importedimported"
        # The agent itself writes the logs of ranks.
        subprocess.run([*command[:-1], "--log-dir=logs", "--redirects=3", "script.py"])
        assert len(list(__import__("pathlib").Path("logs").glob("*/attempt_0/*/stdout.log"))) == 2
"""


def test_modules_are_imported_once_for_all(starter: Starter, tmp_path: Path) -> None:
    """If this fails, each rank imports the project's heavy modules anew, or options of the agent are ignored."""
    write_file(tmp_path, "pytest.ini", "[pytest]\ndist_preload = heavy\n")
    write_file(tmp_path, "heavy.py", "import os\nPID = os.getpid()\n")
    script = """
        import os
        import sys

        import heavy

        own = "TORCHELASTIC_ERROR_FILE" in os.environ
        assert own or heavy.PID != os.getpid()
        print("imported", flush=True)
        sys.exit(86)
    """
    write_file(tmp_path, "script.py", script)
    write_file(tmp_path, "test_suite.py", _SKIPS)
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path), os.getcwd()])}
    child = starter.start(["-m", "pytest", "-p", "dist_testing.adopt.subprocess", "test_suite.py"], tmp_path, env=env)
    assert child.wait() == 0, child.log


@pytest.mark.parametrize(
    ("command", "module"),
    [
        ([sys.executable, "-m", "torch.distributed.run", "x.py"], "torch.distributed.run"),
        ([sys.executable, "-u", "-m", "torch.distributed.launch", "x.py"], "torch.distributed.launch"),
        ([sys.executable, "-m", "accelerate.commands.launch", "x.py"], "accelerate.commands.launch"),
        ([sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"], "accelerate.commands.accelerate_cli"),
        ([sys.executable, "-m", "accelerate.commands.accelerate_cli", "test"], None),
        ([sys.executable, "-m", "pytest"], None),
        ([sys.executable, "-W", "error", "-m", "torch.distributed.run"], None),
        ([sys.executable, "x.py"], None),
        ([sys.executable], None),
        (["/bin/sh", "-c", "torchrun x.py"], None),
        (["/nowhere/torchrun", "x.py"], None),
        (["python-of-somebody-else", "-m", "torch.distributed.run"], None),
        ([], None),
    ],
)
def test_commands_that_launch_ranks_are_recognised(command: list[str], module: str | None) -> None:
    """If this fails, a command runs without the engine, or the engine runs what it cannot."""
    found = launch_in(command, os.environ)
    assert (found[0] if found is not None else None) == module


def test_a_launcher_of_another_python_is_left_alone(tmp_path: Path) -> None:
    """If this fails, a test of another environment runs in this one."""
    beside, other = tmp_path / "beside", tmp_path / "other"
    for folder in (beside, other):
        folder.mkdir()
        for name in ("torchrun", "accelerate"):
            (folder / name).write_text("#!/bin/sh\n", encoding="utf-8")
            (folder / name).chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(beside / "python3"))
        env = {"PATH": str(beside)}
        assert launch_in(["torchrun", "x.py"], env) == ("torch.distributed.run", ("torchrun", "x.py"))
        accelerate = ("accelerate", "launch", "x.py")
        assert launch_in(accelerate, env) == ("accelerate.commands.accelerate_cli", accelerate)
        assert launch_in(["accelerate", "env"], env) is None
        assert launch_in(["torchrun", "x.py"], {"PATH": str(other)}) is None


def _run_until(life: socket.socket, end: Callable[[], None]) -> None:
    """Be a runner whose command ends while it runs."""
    end_with(life)
    end()
    # The signal ends the wait.
    select.select([], [], [], 60)


@pytest.mark.parametrize("is_early", [True, False], ids=["before the runner listens", "afterwards"])
def test_the_end_of_the_command_ends_its_runner(is_early: bool) -> None:
    """If this fails, a command that is killed right after its start leaves a runner and its ranks behind for ever."""
    before = signal.getsignal(signal.SIGIO)
    ours, theirs = socket.socketpair()
    if is_early:
        theirs.close()
    try:
        with ours, pytest.raises(InterruptedRunError):
            _run_until(ours, theirs.close)
    finally:
        signal.signal(signal.SIGIO, before)
