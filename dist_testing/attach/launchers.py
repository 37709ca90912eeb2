"""The variables by which each launcher tells a process its rank: one table, with the sources of the names.

| launcher | source of the names |
|---|---|
| torchrun | `torch/distributed/run.py`, "Environment Variables"; accelerate, DeepSpeed and Ray Train use the same |
| Open MPI | docs.open-mpi.org, "Environment variables set for MPI processes"; read from a run of 4.1 |
| Slurm | `srun(1)`, "OUTPUT ENVIRONMENT VARIABLES"; read from a run of 22.05 |
| hydra (MPICH, Intel MPI) | `mpiexec.hydra`: PMI_RANK and PMI_SIZE of PMI-1, MPI_LOCALRANKID and MPI_LOCALNRANKS |
| PET | `torch/distributed/argparse_util.py`: defaults of torchrun's options; Kubeflow sets them for each pod |

The functions here read a mapping and nothing else.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dist_testing.attach.node_list import first_host
from dist_testing.attach.rank_info import RankInfo
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.layout import LOOPBACK
from dist_testing.core.ground.spec import MAX_WORLD_SIZE

Env = Mapping[str, str]

# Set in each process that torchrun's agent starts.
_RUN_ID = "TORCHELASTIC_RUN_ID"
# Always set beside RANK.
_OF_TORCHRUN = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Ports for jobs whose launcher names none. Below the range from which Linux takes ports for connections.
_FIRST_PORT, _PORTS = 20000, 10000


@dataclass(frozen=True, slots=True)
class Names:
    """The variables of a launcher. "" for a fact that it does not tell.

    Attributes:
        launcher: Its name in messages.
        rank: Rank of the process.
        size: Number of ranks.
        local_rank: Rank among those of the node.
        local_size: Number of ranks of the node.
        node: Number of the node. Open MPI's OMPI_COMM_WORLD_NODE_RANK is not: it counts processes of the node.
        nodes: Number of nodes.
        starter: The command that starts the ranks.
        unset: Without this variable, the library starts the ranks itself.
    """

    launcher: str
    rank: str
    size: str
    local_rank: str
    local_size: str
    node: str
    nodes: str
    starter: str
    unset: str

    @property
    def way_out(self) -> str:
        """How to start the ranks well."""
        return f"Start it with {self.starter}; or unset {self.unset}, and the library starts the ranks itself."


# fmt: off
TORCHRUN = Names(
    "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
    "torchrun", "RANK",
)
OPEN_MPI = Names(
    "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE", "", "", "mpirun", "OMPI_COMM_WORLD_RANK",
)
SLURM = Names(
    "Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", "SLURM_NODEID", "SLURM_STEP_NUM_NODES",
    "srun", "SLURM_STEP_NUM_TASKS",
)
HYDRA = Names(
    "hydra", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "", "", "mpiexec", "PMI_RANK",
)
# fmt: on
# The first that has set its variables counts. torchrun may run in a task of srun or mpirun, and mpirun's daemons are
# tasks of srun. srun, too, sets PMI_RANK.
LAUNCHERS = (TORCHRUN, OPEN_MPI, SLURM, HYDRA)


def rank_info_in(env: Env) -> RankInfo | None:
    """Return this process's rank info from its launcher's variables; None if it is no rank of a world.

    A task of Slurm or MPI that has no peers belongs to no world: the library starts the ranks itself.

    Args:
        env: Environment variables.

    Raises:
        UsageError: If the variables are incomplete, impossible, or contradict each other.
    """
    names = _launcher_in(env)
    if names is None:
        _check_pod(env)
        return None
    if missing := [name for name in _OF_TORCHRUN if names is TORCHRUN and name not in env]:
        raise UsageError(f"RANK={env['RANK']} is set without {', '.join(missing)}.\n{_cause(names)}\n{names.way_out}")
    size = _number(env, names, names.size, 1, MAX_WORLD_SIZE)
    rank = _number(env, names, names.rank, 0, size - 1)
    if names is TORCHRUN and _RUN_ID not in env:
        _check_by_hand(env, rank, size)
    local_rank = _optional(env, names, names.local_rank, 0, rank)
    local_size = _optional(env, names, names.local_size, 1, size)
    nodes = _optional(env, names, names.nodes, 1, size)
    if local_rank is not None and local_size is not None and local_rank >= local_size:
        raise _contradiction(env, names, names.local_rank, names.local_size, "A node has fewer ranks than that.")
    if nodes == 1 and local_size is not None and local_size < size:
        raise _contradiction(env, names, names.nodes, names.local_size, f"The other ranks of {size} are on no node.")
    node = env.get(names.node, "") if names.node else ""
    has_other_nodes = (nodes or 1) > 1 or (local_size or size) < size
    address, port = _address(env, names, has_other_nodes=has_other_nodes)
    return RankInfo(
        rank=rank,
        size=size,
        address=address,
        port=port,
        is_served=names is TORCHRUN and env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=f"{env.get(_RUN_ID, '')}/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}",
        launcher=names.launcher,
        has_other_nodes=has_other_nodes,
        node=node,
        local_rank=local_rank,
        local_size=local_size or 0,
        variable=names.rank,
    )


def _launcher_in(env: Env) -> Names | None:
    for names in LAUNCHERS:
        # The shell of a batch script has SLURM_PROCID=0, too, but no step with tasks.
        if names.rank in env and (names is TORCHRUN or env.get(names.size, "1") != "1"):
            return names
    return None


def _check_by_hand(env: Env, rank: int, size: int) -> None:
    """Compare variables that a script has set with those of the launcher that has started the script."""
    for names in LAUNCHERS[1:]:
        if names.rank not in env or env.get(names.size, "1") == "1":
            continue
        started = _number(env, names, names.size, 1, MAX_WORLD_SIZE)
        own = _number(env, names, names.rank, 0, started - 1)
        # More ranks than tasks: each task has started several.
        if started > size:
            raise _contradiction(
                env, TORCHRUN, "WORLD_SIZE", names.size, f"Some tasks of {names.launcher} are no rank."
            )
        if started == size and own != rank:
            raise _contradiction(env, TORCHRUN, "RANK", names.rank, "Two ranks would have the same number.")


def _check_pod(env: Env) -> None:
    """Refuse the environment of a pod that should run torchrun: without it the pods would not find each other."""
    if env.get("PET_NNODES", "1") != "1":
        raise UsageError(
            f"PET_NNODES={env['PET_NNODES']} is set without RANK.\n"
            "These variables are options of torchrun, so this program was started in a pod without torchrun.\n"
            "Start it in each pod with `torchrun -m pytest ...`; or unset PET_NNODES, and the library starts the ranks."
        )


def _address(env: Env, names: Names, *, has_other_nodes: bool) -> tuple[str, int]:
    address, port = env.get("MASTER_ADDR", ""), 0
    if "MASTER_PORT" in env:
        port = _number(env, names, "MASTER_PORT", 1, 65535)
    found = _FINDERS.get(names.launcher)
    if found is not None:
        own_address, job = found(env)
        address = address or own_address or ("" if has_other_nodes else LOOPBACK)
        port = port or (_FIRST_PORT + zlib.crc32(job.encode()) % _PORTS if job else 0)
    missing = [name for name, value in (("MASTER_ADDR", address), ("MASTER_PORT", port)) if not value]
    if not missing:
        return address, port
    raise UsageError(
        f"{names.rank}={env[names.rank]} is set without {' and '.join(missing)}.\n"
        f"{names.launcher} does not tell the ranks on which node rank 0 is, so they cannot find it.\n"
        f"Pass on the host of rank 0 and a free port there, such as with `-x {missing[0]}=...` of mpirun."
    )


def _of_slurm(env: Env) -> tuple[str, str]:
    # The step's list: a step may use some nodes of its job only, and rank 0 is on the first of them.
    hosts = env.get("SLURM_STEP_NODELIST", "")
    address = ""
    if "MASTER_ADDR" not in env and hosts:
        address = first_host("SLURM_STEP_NODELIST", hosts)
    return address, f"slurm {env.get('SLURM_JOB_ID', '')}.{env.get('SLURM_STEP_ID', '')}"


def _of_open_mpi(env: Env) -> tuple[str, str]:
    return "", env.get("PMIX_NAMESPACE", "")


# Launcher to the function that returns the host of rank 0, and a text that is the same for all ranks of the job and
# differs between jobs. Either is "" if it is not known.
_FINDERS: Mapping[str, Callable[[Env], tuple[str, str]]] = {
    SLURM.launcher: _of_slurm,
    OPEN_MPI.launcher: _of_open_mpi,
    HYDRA.launcher: lambda env: ("", ""),
}


def _cause(names: Names) -> str:
    return f"With {names.rank} set, this process is a rank of an existing world, as {names.launcher} makes one."


def _contradiction(env: Env, names: Names, one: str, other: str, cause: str) -> UsageError:
    return UsageError(f"{one}={env[one]} and {other}={env[other]} contradict each other.\n{cause}\n{names.way_out}")


def _optional(env: Env, names: Names, name: str, least: int, most: int) -> int | None:
    return _number(env, names, name, least, most) if name in env else None


def _number(env: Env, names: Names, name: str, least: int, most: int) -> int:
    text = env.get(name)
    if text is None:
        raise UsageError(f"{names.rank}={env[names.rank]} is set without {name}.\n{_cause(names)}\n{names.way_out}")
    if text.isascii() and text.isdecimal() and least <= int(text) <= most:
        return int(text)
    raise UsageError(f"{name}={text!r}: expected a number from {least} to {most}.\n{_cause(names)}\n{names.way_out}")
