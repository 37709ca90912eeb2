"""Refuses cases whose ranks cannot be spread over simulated nodes, and machines that cannot make any."""

from __future__ import annotations

from dist_testing.core.engine.needs import Lack
from dist_testing.core.ground.case import Case
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.layout import check_node_count
from dist_testing.core.ground.skips import NODES_REASON
from dist_testing.core.ground.spec import Spec
from dist_testing.core.launch.isolation import FORK, isolation_named
from dist_testing.nodes.namespaces import missing_permission

_WAY_OUT = (
    "Run as root, or allow user namespaces: sysctl user.max_user_namespaces=1000; on Ubuntu also "
    "kernel.apparmor_restrict_unprivileged_userns=0."
)


def check(case: Case, spec: Spec) -> None:
    """Check the nodes of a case.

    Raises:
        UsageError: If its ranks cannot be spread over that many nodes.
    """
    check_node_count(case.name, case.nodes)
    isolation = isolation_named(case.isolation)
    gpus = spec.gpus(case.world_size)
    if case.world_size % case.nodes:
        problem = f"nodes = {case.nodes} with world_size = {case.world_size}"
        cause = "Each node has equally many ranks, so the number of nodes must divide the number of ranks."
        way_out = f"Set world_size = {-(-case.world_size // case.nodes) * case.nodes}, for example."
    elif case.nodes > 1 and isolation.in_process:
        problem = f'nodes = {case.nodes} with isolation "{isolation.name}"'
        cause = "The ranks are threads of one process, and a process is on one node."
        way_out = f'Set isolation = "{FORK.name}", with a backend that supports it, or leave nodes out.'
    elif case.nodes > 1 and gpus:
        problem = f"nodes = {case.nodes} with {gpus} GPU(s)"
        cause = "Simulated nodes share the machine's GPUs, and each would give its own ranks the same ones."
        way_out = "Use nodes with a backend for CPUs, or leave nodes out."
    else:
        return
    raise UsageError(f"{case.name}: {problem}.\n{cause}\n{way_out}")


def missing(case: Case, spec: Spec) -> str:
    """Return why this machine cannot make nodes; "" if it can."""
    del case, spec
    refused = missing_permission()
    return Lack(f"{NODES_REASON} ({refused})", _WAY_OUT) if refused else ""
