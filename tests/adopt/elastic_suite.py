"""A suite in the style of projects that start torchrun's agent in their tests; it knows no library for that.

`SEEN=FILE pytest tests/adopt/elastic_suite.py` runs it under the agent, and with `-p dist_testing.adopt.elastic` on the
engine. FILE gets what the tests see, to compare both. START_METHOD=fork saves the agent most of its time.
"""

# mypy: disable-error-code="attr-defined,no-untyped-call"

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.launcher as pet
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch, launch_agent

# Addresses differ from run to run.
_CHANGING = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE")
_OF_AGENT = ("RANK", "WORLD_SIZE", "MASTER_", "TORCHELASTIC_", "ROLE_")


def _config(size: int = 2, **more: Any) -> LaunchConfig:
    method = os.environ.get("START_METHOD", "spawn")
    given = {"rdzv_endpoint": "localhost:0", "run_id": "run", "max_restarts": 0, "start_method": method, **more}
    return LaunchConfig(1, given.pop("max_nodes", 1), size, rdzv_backend="c10d", monitor_interval=0.1, **given)


def _note(name: str, seen: object) -> None:
    with Path(os.environ["SEEN"]).open("a", encoding="utf-8") as file:
        print(json.dumps([name, seen], sort_keys=True), file=file)


def _failure(name: str, error: ChildFailedError) -> None:
    """Note all that is the same in each run."""
    message: Any = {}
    for rank, failure in error.failures.items():
        message = failure.message
        told = message["message"] if isinstance(message, dict) else message.replace(str(failure.pid), "PID")
        stack = message["extraInfo"]["py_callstack"].splitlines()[-1] if isinstance(message, dict) else ""
        where = Path(failure.error_file).name
        _note(name, [rank, failure.local_rank, failure.exitcode, failure.signal_name(), told, stack, where])
    _note(name, [isinstance(error, ChildFailedError), error.name, error.get_first_failure()[0]])


def _environment() -> dict[str, str]:
    assert os.environ["MASTER_ADDR"]
    assert int(os.environ["MASTER_PORT"]) > 0
    assert os.environ["TORCHELASTIC_ERROR_FILE"].endswith(f"{os.environ['RANK']}/error.json")
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _CHANGING and any(part in name for part in _OF_AGENT)
    }


def _all_reduce(word: str, values: torch.Tensor) -> dict[str, Any]:
    dist.init_process_group("gloo")
    total = values.clone()
    dist.all_reduce(total)
    values[dist.get_rank()] = 7.0
    dist.barrier()
    dist.destroy_process_group()
    return {"word": word, "total": total}


def _fails(how: str) -> None:
    if os.environ["RANK"] == "1":
        if how == "raises":
            raise ValueError("planted")
        if how == "exits":
            sys.exit(3)
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def _recovers() -> str:
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if attempt == "0":
        if os.environ["RANK"] == "1":
            raise ValueError("planted in the first attempt")
        signal.pause()
    dist.init_process_group("gloo")
    dist.barrier()
    return attempt


def _ends() -> None:
    sys.exit(0)


def _waits() -> None:
    dist.init_process_group("gloo")
    dist.recv(torch.zeros(1), 1 - dist.get_rank())


def _leaks() -> None:
    subprocess.Popen(["sleep", "30"])


class Method:
    """A method is an entrypoint, too."""

    def work(self) -> str:
        return os.environ["RANK"]


def test_environment() -> None:
    result = pet.elastic_launch(_config(role="trainer", max_restarts=2), entrypoint=_environment)()
    _note("environment", result)


def test_values() -> None:
    values = torch.ones(2).share_memory_()
    result = elastic_launch(_config(), _all_reduce)("at ${local_rank}", values)
    assert values.tolist() == [7.0, 7.0]
    _note("values", {rank: [value["word"], value["total"].tolist()] for rank, value in result.items()})


def test_method() -> None:
    _note("method", launch_agent(_config(3), Method().work, []))


def test_end_by_exit_0() -> None:
    _note("end", pet.elastic_launch(_config(), _ends)())


@pytest.mark.parametrize(
    ("how", "said", "max_restarts"),
    [
        ("raises", "ValueError: planted", 0),
        ("raises", "ValueError: planted", 1),
        ("exits", "", 0),
        ("dies", "SIGKILL", 0),
    ],
)
def test_failure_is_expected(how: str, said: str, max_restarts: int) -> None:
    with pytest.raises(ChildFailedError, match=said) as caught:
        pet.elastic_launch(_config(max_restarts=max_restarts), _fails)(how)
    _failure(how, caught.value)


def test_restart() -> None:
    _note("restart", pet.elastic_launch(_config(max_restarts=1), _recovers)())


def test_command() -> None:
    _note("command", pet.elastic_launch(_config(), sys.executable)("-c", "pass"))


def test_nodes() -> None:
    _note("nodes", pet.elastic_launch(_config(max_nodes=2, rdzv_configs={"last_call_timeout": 1}), Method().work)())


def test_redirected(tmp_path: Path) -> None:
    logs = DefaultLogsSpecs(str(tmp_path), redirects=Std.ALL)
    # torch's own ranks: forks of this process do not always find their redirected streams.
    pet.elastic_launch(_config(1, logs_specs=logs, start_method="spawn"), print)("printed")
    _note("redirected", sorted(path.read_text() for path in tmp_path.glob("*/attempt_0/*/stdout.log")))


def test_fails() -> None:
    pet.elastic_launch(_config(), _fails)("raises")


# From here on: what torch's agent does not see.


def test_hole_leak() -> None:
    pet.elastic_launch(_config(1), _leaks)()


def test_hole_hang() -> None:
    pet.elastic_launch(_config(max_restarts=3), _waits)()


def test_hole_exit_0() -> None:
    pet.elastic_launch(_config(1), os._exit)(0)
