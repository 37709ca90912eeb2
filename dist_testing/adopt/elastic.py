"""A plugin of pytest for suites that call torchrun's agent in a test: `pytest -p dist_testing.adopt.elastic`.

`torch.distributed.launcher.elastic_launch(config, entrypoint=function)(*args)` makes its ranks on the engine, forked
from the test's process, with the environment, the error files, the restarts and the exceptions of torch's agent.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# First: it imports torch so that Ctrl-C ends the run.
from dist_testing.adopt.on_ranks import is_rank, keeps_own_way, ranks_of, share_memory

# isort: split
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure, record
from torch.distributed.elastic.utils.api import macros
from torch.distributed.launcher import api

from dist_testing.adopt.as_process import run_as_process
from dist_testing.core.ground.case import CaseFailedError, CaseResult
from dist_testing.core.ground.error_text import name_of
from dist_testing.core.ground.layout import Layout
from dist_testing.core.ground.outcomes import GOOD, Cause, Kind
from dist_testing.core.ground.spec import check_world_size
from dist_testing.core.unittest.exits import exit_code

# unittest leaves frames of modules with this mark out of its tracebacks.
__unittest = True

# The parts of a configuration that the engine has, or needs not. All others must have their defaults.
_KNOWN = frozenset(
    [
        *("min_nodes", "max_nodes", "nproc_per_node", "max_restarts", "run_id", "role", "logs_specs", "local_addr"),
        *("rdzv_backend", "rdzv_endpoint", "rdzv_configs", "rdzv_timeout"),
        *("monitor_interval", "start_method", "signals_to_handle", "shutdown_timeout"),
    ]
)
# Rendezvous that one node has with itself. Others ask a server that the test has started.
_OF_ONE_NODE = ("c10d", "static")
# $TORCH_NCCL_ASYNC_ERROR_HANDLING (library): 1, as torch's agent sets it, with the adapter for the agent.
_ASYNC_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
# The exit code of a Python process that ends by an exception.
_RAISED = 1

_original: Callable[..., dict[int, Any]] = api.launch_agent


class RanksFailedError(CaseFailedError, ChildFailedError):
    """Ranks have failed; torch's own exception, with the report as its text."""

    def __init__(self, text: str, result: CaseResult, name: str, failures: dict[int, ProcessFailure]) -> None:
        ChildFailedError.__init__(self, name, failures)
        # It also sets the text.
        CaseFailedError.__init__(self, text, result)


def launch_agent(config: Any, entrypoint: Any, args: Sequence[Any], *more: Any, **named: Any) -> dict[int, Any]:
    """Take the place of torch's function of this name: return what each rank has returned, by rank."""
    __tracebackhide__ = True
    name = name_of(entrypoint) if callable(entrypoint) else str(entrypoint)
    has_more = any(value is not None for value in (*more, *named.values()))
    if is_rank() or keeps_own_way(name, "torch's own agent runs it", _unknown(config, entrypoint, has_more)):
        return _original(config, entrypoint, args, *more, **named)
    check_world_size(f"elastic_launch({name})", config.nproc_per_node, "Set nproc_per_node of the LaunchConfig.")
    config.run_id = config.run_id or str(uuid.uuid4().int)
    if config.start_method != "fork":
        share_memory(args)
    for attempt in range(config.max_restarts + 1):
        envs = _envs(config, attempt)
        # It makes the folder for the error files, and adds the variable that names them.
        logs = config.logs_specs.reify(envs)
        if any((*logs.stdouts.values(), *logs.stderrs.values())):
            keeps_own_way(name, "torch's own agent runs it", "its logs_specs redirect the output")
            return _original(config, entrypoint, args, *more, **named)
        try:
            return _run(functools.partial(_call, entrypoint, args, envs), name, config.nproc_per_node, logs.error_files)
        except RanksFailedError as error:
            # torch's agent knows no hangs.
            if attempt == config.max_restarts or error.result.verdict.cause is Cause.HANG:
                raise
            reason = error.result.verdict.reason
            print(f"dist_testing: {name}: restart {attempt + 1} of {config.max_restarts}: {reason}", file=sys.stderr)
    raise AssertionError("the last attempt returns or raises")


def _unknown(config: Any, entrypoint: object, has_more: bool) -> str:
    """Return what only torch's agent can do; "" if the engine can make the ranks."""
    if not callable(entrypoint):
        return "it starts a command"
    if (config.min_nodes, config.max_nodes) != (1, 1):
        return f"it has min_nodes={config.min_nodes} and max_nodes={config.max_nodes}"
    if config.rdzv_backend not in _OF_ONE_NODE:
        return f"its rdzv_backend is {config.rdzv_backend!r}"
    if has_more:
        return "it has a health check server"
    plain = api.LaunchConfig(1, 1, config.nproc_per_node, config.logs_specs)
    names = [field.name for field in dataclasses.fields(config)]
    other = [name for name in names if name not in _KNOWN and getattr(config, name) != getattr(plain, name)]
    return f"it sets {', '.join(other)}" if other else ""


def _envs(config: Any, attempt: int) -> dict[int, dict[str, str]]:
    """Return the variables that the agent sets, by rank; those of the store are the engine's."""
    # $TORCHELASTIC_SIGNALS_TO_HANDLE (library): as torch's agent sets it, with the adapter for the agent.
    layout = Layout(config.nproc_per_node)
    size = str(layout.size)
    common = {
        **layout.world_env(),
        "ROLE_NAME": config.role,
        "ROLE_WORLD_SIZE": size,
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(config.max_restarts),
        "TORCHELASTIC_RUN_ID": config.run_id,
        "TORCHELASTIC_SIGNALS_TO_HANDLE": config.signals_to_handle,
        # Rank 0 serves it before any rank begins, and until all have ended, so all are clients, as under the agent.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        _ASYNC_ERRORS: os.environ.get(_ASYNC_ERRORS, "1"),
    }
    return {rank: {**common, **layout.rank_env(rank), "ROLE_RANK": str(rank)} for rank in range(layout.size)}


def _call(entrypoint: Callable[..., Any], args: Sequence[Any], envs: Mapping[int, Mapping[str, str]], rank: int) -> Any:
    os.environ.update(envs[rank])
    # They are processes of torch.multiprocessing, also under the agent.
    return run_as_process(functools.partial(record(entrypoint), *macros.substitute(list(args), str(rank))))


def _run(call: Callable[[int], Any], name: str, size: int, error_files: Mapping[int, str]) -> dict[int, Any]:
    __tracebackhide__ = True
    with ranks_of(call, name, size, None, subject=f"elastic_launch({name})", with_store=True) as world:
        running = world.start()
        result = world.finish(running)
        try:
            world.judge(result, CaseFailedError)
        except CaseFailedError as error:
            pids = [rank.pid or -1 for rank in running.world.supervisor.records]
            if failures := _failures(result, pids, error_files):
                raise RanksFailedError(str(error), result, name.rpartition(".")[2], failures) from None
            raise
        return dict(enumerate(world.values(result)))


def _failures(result: CaseResult, pids: Sequence[int], error_files: Mapping[int, str]) -> dict[int, ProcessFailure]:
    """Return what torch's agent keeps of the rank that has failed first; empty if no rank has failed."""
    verdict = result.verdict
    if verdict.cause not in (Cause.FAILURE, Cause.CRASH, Cause.HANG):
        return {}
    ranks = [verdict.culprit] if verdict.culprit is not None else []
    ranks = ranks or [outcome.rank for outcome in result.outcomes if outcome.kind not in GOOD]
    return {rank: ProcessFailure(rank, pids[rank], _exit_code(result, rank), error_files[rank]) for rank in ranks}


def _exit_code(result: CaseResult, rank: int) -> int:
    outcome = result.outcomes[rank]
    return _RAISED if outcome.kind is Kind.RAISED else exit_code(outcome)


# At import: pytest imports the plugin before it collects tests, which may import the function by name.
for _owner in (api, sys.modules["torch.distributed.launcher"]):
    _owner.launch_agent = launch_agent  # type: ignore[attr-defined]
