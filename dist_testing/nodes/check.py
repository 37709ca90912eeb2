"""The number of nodes that a test asks for: what is possible, what the machine lacks, and what its ranks get."""

from __future__ import annotations

from collections.abc import Mapping

from dist_testing.core.engine.hooks import HeldResource, ResourceWish, WorldResource
from dist_testing.core.engine.needs import Lack
from dist_testing.core.ground.case import Case
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.layout import INTERFACE_VARIABLES
from dist_testing.core.ground.spec import Spec, number_in
from dist_testing.core.launch.isolation import FORK, isolation_named
from dist_testing.nodes.links import MAX_NODES
from dist_testing.nodes.namespaces import INTERFACE, missing_permission, node_address

_REASON = "Need network namespaces for simulated nodes"
_WAY_OUT = (
    "Run as root, or allow user namespaces: sysctl user.max_user_namespaces=1000; on Ubuntu also "
    "kernel.apparmor_restrict_unprivileged_userns=0."
)


def check_node_count(subject: str, value: object) -> int:
    """Return `value`, if it is a possible number of nodes: an int, and not a bool. `subject` begins an error."""
    if type(value) is not int or not 1 <= value <= MAX_NODES:
        raise UsageError(
            f"{subject}: nodes = {value!r}; expected a number from 1 to {MAX_NODES}.\n"
            "The ranks of a world are spread over that many simulated nodes of this machine.\n"
            "Use 2, for example, or leave it out."
        )
    return value


def from_options(spec: Spec, given: Mapping[str, str]) -> int:
    """Return the number of nodes that the command line asks for."""
    ((option, text),) = given.items()
    return check_node_count(option, text if (count := number_in(text)) is None else count)


def nodes_of(case: Case) -> int:
    """Return the number of nodes of a case; 1 for the machine itself, without namespaces."""
    count: int = case.settings.get("nodes", 1)
    return count


def places_of(case: Case) -> tuple[int, ...]:
    """Return the node of each rank: each has equally many, in the order of the ranks. Empty for the machine itself."""
    nodes = nodes_of(case)
    return tuple(rank * nodes // case.world_size for rank in range(case.world_size)) if nodes > 1 else ()


def check(case: Case, spec: Spec) -> None:
    """Check the nodes of a case."""
    nodes = check_node_count(case.name, nodes_of(case))
    isolation = isolation_named(case.isolation)
    if case.world_size % nodes:
        problem = f"nodes = {nodes} with world_size = {case.world_size}"
        cause = "Each node has equally many ranks, so the number of nodes must divide the number of ranks."
        way_out = f"Set world_size = {-(-case.world_size // nodes) * nodes}, for example."
    elif nodes > 1 and isolation.in_process:
        problem = f'nodes = {nodes} with isolation "{isolation.name}"'
        cause = "The ranks are threads of one process, and a process is on one node."
        way_out = f'Set isolation = "{FORK.name}", with a backend that supports it, or leave nodes out.'
    elif nodes > 1 and spec.backend.device != "cpu":
        problem = f'nodes = {nodes} with backend "{spec.backend.name}"'
        cause = "Simulated nodes share the machine's GPUs, and each would give its own ranks the same ones."
        way_out = "Use nodes with a backend for CPUs, or leave nodes out."
    else:
        return
    raise UsageError(f"{case.name}: {problem}.\n{cause}\n{way_out}")


def missing(case: Case, spec: Spec) -> str:
    """Return why this machine cannot make nodes; "" if it can."""
    refused = missing_permission()
    return Lack(f"{_REASON} ({refused})", _WAY_OUT) if refused else ""


class Spread(WorldResource):
    """Tells each world on which node a rank is, and the interface and the store's address there."""

    def acquire(self, wish: ResourceWish) -> HeldResource:
        """Return the places."""
        held = HeldResource()
        held.places = places_of(wish.case)
        held.host = node_address(0)
        held.env = dict.fromkeys(INTERFACE_VARIABLES, INTERFACE)
        return held
