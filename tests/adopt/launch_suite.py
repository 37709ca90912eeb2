"""A suite in the style of projects that start a launcher for each test; it knows no library for that.

`pytest tests/adopt/launch_suite.py` runs it under its own harness, and with `-p dist_testing.adopt.subprocess` on the
engine.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_SCRIPT = Path(__file__).parent / "scripts" / "train.py"
_TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2"]
# Beside the interpreter, as a virtual environment has it.
_COMMAND = str(Path(sys.executable).with_name("torchrun"))


async def _stream(command: list[str], env: dict[str, str]) -> tuple[int, list[str], list[str]]:
    """Run a command as accelerate's and transformers' tests do."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=None,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=env,
    )
    out: list[str] = []
    err: list[str] = []

    async def read(stream: Any, lines: list[str]) -> None:
        async for line in stream:
            lines.append(line.decode().rstrip())

    await asyncio.gather(read(process.stdout, out), read(process.stderr, err))
    return await process.wait(), out, err


def test_run(tmp_path: Path) -> None:
    command = [*_TORCHRUN, str(_SCRIPT), "--steps=3"]
    env = {**os.environ, "SET_BY_TEST": "here"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, umask=0o7, check=True)
    assert json.loads(done.stdout) == {
        "value": 8.0,
        "set": "here",
        "cwd": str(tmp_path),
        "path": str(_SCRIPT.parent),
        "name": "__main__",
        "argv": [str(_SCRIPT), "--steps=3"],
        "local": "2",
        "pytest": False,
        "umask": 0o7,
    }
    assert "to standard error" in done.stderr


@pytest.mark.skipif(shutil.which(_COMMAND) is None, reason="no torchrun beside this Python")
def test_check_call() -> None:
    subprocess.check_call([_COMMAND, "--standalone", "--nproc-per-node", "3", str(_SCRIPT)])


def test_launch() -> None:
    command = [sys.executable, "-m", "torch.distributed.launch", "--nproc_per_node=2", "--use_env", str(_SCRIPT)]
    assert '"local": "2"' in subprocess.check_output(command, text=True)


def test_asyncio() -> None:
    code, out, err = asyncio.run(_stream([*_TORCHRUN, str(_SCRIPT)], dict(os.environ)))
    assert code == 0, err
    assert json.loads(out[-1])["value"] == 2.0


@pytest.mark.parametrize("end", ["raise", "signal"])
def test_failure_is_expected(end: str) -> None:
    done = subprocess.run([*_TORCHRUN, str(_SCRIPT), f"--end={end}"], capture_output=True, text=True)
    assert done.returncode == 1
    assert ("ValueError: planted" in done.stderr) == (end == "raise")


def test_time_is_over() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([*_TORCHRUN, str(_SCRIPT), "--end=sleep"], timeout=3)


def test_terminate() -> None:
    with subprocess.Popen([*_TORCHRUN, str(_SCRIPT), "--end=sleep"], stdout=subprocess.PIPE) as process:
        process.terminate()
        assert process.wait(60) != 0


@pytest.mark.parametrize("place", [{"process_group": 0}, {"start_new_session": True}], ids=["group", "session"])
def test_end_of_group(place: dict[str, Any]) -> None:
    process = subprocess.Popen([*_TORCHRUN, str(_SCRIPT), "--end=sleep"], **place)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL


def test_wrong_option() -> None:
    done = subprocess.run([*_TORCHRUN, "--no-such-option", str(_SCRIPT)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "unrecognized arguments" in done.stderr or "usage" in done.stderr


def test_other_commands() -> None:
    assert subprocess.check_output([sys.executable, "-c", "print(3)"], text=True) == "3\n"


def test_fails() -> None:
    subprocess.run([*_TORCHRUN, str(_SCRIPT), "--end=exit"], check=True)
