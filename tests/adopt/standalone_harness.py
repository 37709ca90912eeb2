"""A small model of what Lightning's standalone tests use: the mark, the hooks of its conftest, and its launcher.

Their own harness is a shell script, which runs `python -m pytest <test>` for each test.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,type-arg"

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist


def RunIf(*, min_gpus: int = 0, standalone: bool = False) -> Any:
    reasons = [f"GPUs>={min_gpus}"] if min_gpus else []
    kwargs = {}
    if standalone:
        if os.getenv("PL_RUN_STANDALONE_TESTS", "0") != "1":
            reasons.append("Standalone execution")
        kwargs["standalone"] = True
    return pytest.mark.skipif(condition=bool(reasons), reason=f"Requires: [{' + '.join(reasons)}]", **kwargs)


def pytest_collection_modifyitems(items: list[Any]) -> None:
    if os.getenv("PL_RUN_STANDALONE_TESTS", "0") == "1":
        items[:] = [
            item
            for item in items
            if any(mark.name == "skipif" and mark.kwargs.get("standalone") for mark in item.own_markers)
        ]


@pytest.fixture(autouse=True)
def teardown_process_group():
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
    for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "LOCAL_RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)


class _ChildProcessObserver(threading.Thread):
    def __init__(self, children: list[subprocess.Popen]) -> None:
        super().__init__(daemon=True, name="child-process-observer")
        self._children = children
        self._stop = threading.Event()

    def run(self) -> None:
        while not self._stop.wait(0.2):
            codes = [child.poll() for child in self._children]
            if any(codes):
                for child in self._children:
                    child.send_signal(signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGTERM)
            if all(code is not None for code in codes):
                return


class Launcher:
    """As Lightning's `_SubprocessScriptLauncher`: the first process starts its own command for each other rank."""

    def __init__(self, devices: int, *, observes: bool = True) -> None:
        self.devices = devices
        self.procs: list[subprocess.Popen] = []
        self._observes = observes

    def launch(self, function: Callable[..., Any], *args: Any) -> Any:
        rank = int(os.environ.get("LOCAL_RANK", "0"))
        if rank == 0:
            self._call_children_scripts()
            if self._observes:
                _ChildProcessObserver(self.procs).start()
        dist.init_process_group("gloo", rank=rank, world_size=self.devices)
        return function(rank, *args)

    def _call_children_scripts(self) -> None:
        with socket.socket() as chosen:
            chosen.bind(("127.0.0.1", 0))
            port = chosen.getsockname()[1]
        os.environ.update(
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            NODE_RANK="0",
            LOCAL_RANK="0",
            WORLD_SIZE=str(self.devices),
        )
        import __main__

        program = ["-m", __main__.__spec__.name] if __main__.__spec__ else [os.path.abspath(sys.argv[0])]
        for local_rank in range(1, self.devices):
            env = os.environ.copy()
            env["LOCAL_RANK"] = str(local_rank)
            self.procs.append(subprocess.Popen([sys.executable, *program, *sys.argv[1:]], env=env, cwd=None))
