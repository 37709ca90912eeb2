"""Debugging one rank: `--dist-debug-rank`, and pytest's own debugger options beside it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest

from dist_testing.core.ground.case import CaseFailedError
from dist_testing.core.ground.errors import DistTestingError, UsageError
from dist_testing.core.ground.spec import MAX_WORLD_SIZE, number_in
from dist_testing.core.launch.isolation import FORK
from dist_testing.core.pytest.marked_items import CASE_KEY, is_marked, isolation_of
from dist_testing.core.rank.capture import TERMINAL
from dist_testing.core.session.existing_world import ExistingRank


def debug_rank(config: pytest.Config, rank_info: ExistingRank | None) -> int | None:
    """Return the rank that `--dist-debug-rank` names; None without the option."""
    text: str | None = config.getoption("--dist-debug-rank")
    if text is None:
        return None
    option = f"--dist-debug-rank={text}"
    if (rank := number_in(text)) is None or rank >= MAX_WORLD_SIZE:
        raise UsageError(
            f"{option}: expected the number of a rank, from 0.\n"
            "One rank gets the terminal, and the others wait for it.\n"
            "Name a rank of the world that the test runs on."
        )
    if rank_info is not None or hasattr(config, "workerinput") or config.getoption("numprocesses", None):
        who = "torchrun" if rank_info is not None else "pytest-xdist"
        raise UsageError(
            f"{option} under {who}.\n"
            "It starts its processes without a terminal, so no rank can use one.\n"
            f"Run the test without {who}; the library starts the ranks itself."
        )
    try:
        os.close(os.open(TERMINAL, os.O_RDWR))
    except OSError as error:
        raise UsageError(
            f"{option}: there is no terminal: {TERMINAL}: {error.strerror}.\n"
            "A debugger needs one, but this run was started without it: by a service, or by `bazel test`.\n"
            "Run it in a terminal: pytest, or the program that `bazel build` makes (docs/watch.md)."
        ) from error
    return rank


def check_world(config: pytest.Config, rank: int | None, items: Sequence[pytest.Item]) -> None:
    """Refuse a debugger prompt that would have no terminal. `rank` gets the terminal; `items` will run on ranks."""
    if rank is None:
        # Not options of a session with -p no:debugging.
        prompts = {"usepdb": "--pdb", "trace": "--trace"}
        prompt = next((option for name, option in prompts.items() if config.getoption(name, False)), "")
        if items and prompt:
            raise UsageError(
                f"{prompt}: {items[0].nodeid} runs on ranks, and a rank has no terminal.\n"
                "The ranks of a world run at the same time, and only one of them can have the terminal.\n"
                "Name the rank: --dist-debug-rank=0."
            )
        return
    for item in items:
        name, isolation = item.nodeid, isolation_of(item)
        # A unittest class states its size only when it starts.
        size = item.stash[CASE_KEY].world_size if is_marked(item) else MAX_WORLD_SIZE
        if rank >= size:
            raise UsageError(
                f"--dist-debug-rank={rank}: {name} runs on {size} rank{'s' if size > 1 else ''}.\n"
                "Ranks are counted from 0.\n"
                f"Name a rank from 0 to {size - 1}, or choose other tests with -k."
            )
        if not isolation.can_debug:
            raise UsageError(
                f'--dist-debug-rank={rank}: {name} has isolation "{isolation.name}".\n'
                "Its ranks are threads of one process, and a debugger would stop them all.\n"
                f'Choose other tests with -k, or give the test ranks that are processes: isolation="{FORK.name}".'
            )


def leave_ranks_to_ranks(config: pytest.Config) -> None:
    """With --pdb, open no prompt in the runner for failures of ranks: the runner does not have their frames."""
    if (invoke := config.pluginmanager.unregister(name="pdbinvoke")) is not None:
        config.pluginmanager.register(_InvokeElsewhere(invoke), "pdbinvoke")


class _InvokeElsewhere:
    def __init__(self, invoke: Any) -> None:
        self._interact = invoke.pytest_exception_interact
        self.pytest_internalerror = invoke.pytest_internalerror

    def pytest_exception_interact(self, node: pytest.Item, call: pytest.CallInfo[Any], report: Any) -> None:
        """Open the prompt for a failure of a plain test, or on the rank that has the terminal."""
        if call.excinfo is not None and not isinstance(call.excinfo.value, CaseFailedError | DistTestingError):
            self._interact(node, call, report)
