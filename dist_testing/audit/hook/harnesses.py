"""The one table of the ways in which suites start ranks, which the audit's hook and `dist_testing.adopt` share.

In an audited suite the hook notes the calls of a test's own code to what `started_by` names.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

from . import record

TORCH_CLASSES = "torch.testing._internal.common_distributed"
# What calls a harness for itself: torch's agent, data loaders, pools.
_LIBRARIES = ("concurrent", "multiprocessing", "torch")
# A command that starts ranks, as one text.
_LAUNCHER = re.compile(r"\b(torchrun|torch\.distributed\.(run|launch)|accelerate([- ]launch|\.commands))\b")
LAUNCHED = "torchrun or accelerate as a subprocess"
STANDALONE = "Lightning's standalone tests"


class Harness(NamedTuple):
    """A way in which suites start ranks."""

    name: str
    # The plug-in of pytest that runs such tests on the engine; "" if there is none. Then a hook in conftest.py does,
    # unless each test runs alone.
    plugin: str
    page: str  # the page of the documentation
    # Names of functions and classes that such tests reach, as "module:name"; the module is "*" if it is the suite's.
    reached: tuple[str, ...] = ()
    started_by: tuple[str, ...] = ()  # what starts the ranks, as "module:name"
    # Each test needs a session of its own: in one session its ranks would start ranks again, without an end.
    runs_alone: bool = False


HARNESSES = (
    Harness(
        "torch's test classes",
        "dist_testing.compat.pytest_install",
        "docs/migration.md",
        (
            f"{TORCH_CLASSES}:MultiProcessTestCase",
            f"{TORCH_CLASSES}:MultiThreadedTestCase",
            f"{TORCH_CLASSES}:MultiProcContinuousTest",
        ),
        (
            f"{TORCH_CLASSES}:MultiProcessTestCase._start_processes",
            f"{TORCH_CLASSES}:MultiThreadedTestCase._spawn_threads",
        ),
    ),
    Harness(
        "DeepSpeed's DistributedTest",
        "dist_testing.adopt.deepspeed",
        "docs/adopt_frameworks.md#deepspeed",
        ("*:DistributedExec",),
    ),
    Harness(
        "vLLM's decorators",
        "dist_testing.adopt.vllm",
        "docs/adopt_frameworks.md#vllm",
        (
            "*:fork_new_process_for_each_test",
            "*:spawn_new_process_for_each_test",
            "*:create_new_process_for_each_test",
            "*:multi_gpu_test",
            "*:multi_process_parallel",
        ),
    ),
    Harness(STANDALONE, "", "docs/adopt_frameworks.md#lightning", runs_alone=True),
    Harness(
        "torchrun's agent in a test",
        "dist_testing.adopt.elastic",
        "docs/adopt.md#my-tests-call-elastic_launch",
        (
            "torch.distributed.launcher.api:elastic_launch",
            "torch.distributed.launcher.api:launch_agent",
            "torch.distributed.run:main",
            "torch.distributed.run:run",
        ),
        (
            "torch.distributed.launcher.api:elastic_launch.__call__",
            "torch.distributed.launcher.api:launch_agent",
            "torch.distributed.run:run",
        ),
    ),
    Harness(
        "torch.multiprocessing.spawn",
        "dist_testing.adopt.spawn",
        "docs/adopt.md#my-tests-call-torchmultiprocessingspawn",
        ("torch.multiprocessing.spawn:spawn", "torch.multiprocessing.spawn:start_processes"),
        ("torch.multiprocessing.spawn:spawn", "torch.multiprocessing.spawn:start_processes"),
    ),
    Harness(
        "multiprocessing.Process",
        "dist_testing.adopt.spawn",
        "docs/adopt.md#my-tests-call-torchmultiprocessingspawn",
        ("multiprocessing.process:BaseProcess",),
        ("multiprocessing.process:BaseProcess.start",),
    ),
    Harness(
        LAUNCHED,
        "dist_testing.adopt.subprocess",
        "docs/adopt_frameworks.md#accelerate-and-transformers",
        (),
        ("subprocess:Popen._execute_child",),
    ),
    Harness(
        "tests that are ranks of torchrun",
        "",
        "docs/adopt.md#all-ranks-of-torchrun-run-my-tests",
        ("torch.distributed.distributed_c10d:init_process_group",),
    ),
)


def is_launcher(text: str) -> bool:
    """Return whether a text has a command that starts ranks."""
    return _LAUNCHER.search(text) is not None


def watches() -> Iterator[tuple[str, Callable[[ModuleType], None]]]:
    """Yield the modules whose functions start ranks, each with what has the calls noted."""
    for harness in HARNESSES:
        for entry in harness.started_by:
            module, _, name = entry.partition(":")
            yield module, functools.partial(_watch, harness.name, name)


def _watch(harness: str, name: str, module: ModuleType) -> None:
    owner: Any = module
    *classes, last = name.split(".")
    for part in classes:
        owner = getattr(owner, part, None)
    function = getattr(owner, last, None)
    # Not every version of torch has all of them.
    if function is None:
        return

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if harness == LAUNCHED:
            is_own = is_launcher(_command(args))
        else:
            # torch calls the methods of its test classes itself.
            caller = str(sys._getframe(1).f_globals.get("__name__", ""))
            is_own = module.__name__ == TORCH_CLASSES or caller.partition(".")[0] not in _LIBRARIES
        if is_own:
            record.note("harness", harness=harness)
        return function(*args, **kwargs)

    setattr(owner, last, call)


def _command(args: tuple[Any, ...]) -> str:
    """Return the command of `Popen._execute_child`."""
    return subprocess.list2cmdline(map(str, args[1])) if isinstance(args[1], list | tuple) else str(args[1])
