"""Models of vLLM's wrappers: one forks for each test, and one starts an interpreter that runs nothing."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from tests.audit.harnesses import world_body


def fork_new_process_for_each_test(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in a forked process; a skip there ends it with 0, which passes."""

    @functools.wraps(test)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                test(*args, **kwargs)
            except pytest.skip.Exception as skipped:
                print(f"Skipped: {skipped}")
                os._exit(0)
            except Exception:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0, "function failed"

    return wrapper


def spawn_new_process_for_each_test(test: Callable[..., None]) -> Callable[..., None]:
    """Start an interpreter with the test's module as main, which defines the test and does not call it."""

    @functools.wraps(test)
    def wrapper(*_args: Any, **_kwargs: Any) -> None:
        module = test.__code__.co_filename
        subprocess.run([sys.executable, module], check=True, timeout=60)

    return wrapper


@fork_new_process_for_each_test
def test_forked(tmp_path: Any) -> None:
    """A world of one."""
    world_body.join(str(tmp_path / "f"), 0, 1)
    dist.barrier()
    world_body.leave()


@spawn_new_process_for_each_test
def test_spawned(tmp_path: Any) -> None:
    """Never runs."""
    world_body.join(str(tmp_path / "f"), 0, 1)
    raise AssertionError("this test cannot pass")
