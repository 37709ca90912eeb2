"""A process's rank in an attached world, from the variables of its launcher; the store by which its ranks meet.

The sources of the variables:

| launcher | source of the names |
|---|---|
| torchrun | `torch/distributed/run.py`, "Environment Variables"; accelerate, DeepSpeed and Ray Train use the same |
| Open MPI | docs.open-mpi.org, "Environment variables set for MPI processes"; read from a run of 4.1 |
| Slurm | `srun(1)`, "OUTPUT ENVIRONMENT VARIABLES"; read from a run of 22.05 |
| hydra (MPICH, Intel MPI) | `mpiexec.hydra`: PMI_RANK and PMI_SIZE of PMI-1, and MPI_LOCALNRANKS |
| PET | `torch/distributed/argparse_util.py`: defaults of torchrun's options; Kubeflow sets them for each pod |
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from dist_testing.core.ground.error_text import ranks_text
from dist_testing.core.ground.errors import LaunchError, UsageError
from dist_testing.core.ground.layout import INTERFACE_VARIABLES, LOOPBACK
from dist_testing.core.ground.spec import MAX_WORLD_SIZE, number_in

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

# Limit for every rank to collect the tests and connect: from a cold disk the import of torch takes a minute. Seconds.
ATTACH_LIMIT_S = 300.0
# When the first line about missing ranks comes, and after how long each further one. Seconds.
_FIRST_LINE_S, NEXT_LINE_S = 5.0, 30.0
# $DIST_TESTING_ADDRESS (user): on the node of rank 0 of an attached world: the address at which the other nodes reach
# it (default: MASTER_ADDR).
ADDRESS_VARIABLE = "DIST_TESTING_ADDRESS"


@dataclass(frozen=True, slots=True)
class RankInfo:
    """A process's rank in an attached world. Rank 0 is also the runner."""

    rank: int
    size: int
    address: str  # host of the store that all ranks use
    port: int
    is_served: bool  # whether torchrun's agent serves the store already; else rank 0 serves it
    attempt: str  # distinguishes this start of the world from torchrun's earlier ones
    launcher: str = "torchrun"
    has_other_nodes: bool = False  # as far as the launcher tells
    node: str = ""  # the launcher's name of this node; "" if it does not tell
    variable: str = "RANK"  # the launcher's variable that tells the rank

    def store(self) -> Store:
        """Connect to the store, under a prefix of keys of our own; a LaunchError if it cannot be reached.

        It is independent of the groups of the tests, so it works also if those fail.
        """
        from torch._C._distributed_c10d import PrefixStore, TCPStore

        serves = self.rank == 0 and not self.is_served
        try:
            listener = own_listener(self.address, self.port).detach() if serves else None
        except OSError as error:
            raise LaunchError(
                f"Rank 0 cannot listen at {self.address}:{self.port}, where the other ranks look for it: "
                f"{error.strerror or error}.\n"
                "MASTER_ADDR is not the machine of rank 0, or another process has the port of MASTER_PORT.\n"
                "Set MASTER_ADDR to the host of rank 0, and MASTER_PORT to a port that is free there."
            ) from error
        try:
            store = TCPStore(
                self.address,
                self.port,
                self.size,
                is_master=serves,
                timeout=timedelta(seconds=ATTACH_LIMIT_S),
                wait_for_workers=False,
                # Later stores of rank 0 at this port, such as that of env://, then share the server.
                multi_tenant=True,
                master_listen_fd=listener,
            )
        except RuntimeError as error:
            server = "torchrun's agent" if self.is_served else "rank 0"
            raise LaunchError(
                f"Rank {self.rank} of {self.size} has not found the store at {self.address}:{self.port}: "
                f"{str(error).partition(chr(10))[0]}\n"
                f"It is that of {server}, which has ended, or the variables of {self.launcher} are of an earlier run.\n"
                f"Start every rank by the same command, with {self.launcher}; or unset {self.variable}, and the "
                "library starts the ranks."
            ) from error
        return PrefixStore(f"dist_testing/{self.attempt}", store)

    @property
    def node_key(self) -> str:
        """What tells this node from every other one.

        Processes with the same key can reach each other by Unix sockets, and know each other's numbers. Two agents of
        torchrun on one machine are two nodes, as for torchrun itself.
        """
        spaces = [os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "pid", "uts")]
        return " ".join([self.node, Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip(), *spaces])

    @contextlib.contextmanager
    def saying_who_is_missing(
        self, missing: Callable[[], Sequence[int]], log_line: Callable[[str], None], first_s: float = _FIRST_LINE_S
    ) -> Iterator[None]:
        """Tell, while the block runs, which ranks it waits for: after `first_s` seconds, and then every 30 s.

        A thread tells it, because the wait for a store takes place in native code.
        """
        is_over = threading.Event()

        def say() -> None:
            pause_s = first_s
            while not is_over.wait(pause_s):
                pause_s = NEXT_LINE_S
                if not (ranks := missing()):
                    continue
                log_line(
                    f"waiting for {ranks_text(ranks)} of {self.size} at {self.address}:{self.port} ({self.variable}="
                    f"{os.environ.get(self.variable, self.rank)} is set; not under {self.launcher}? "
                    f"unset {self.variable})"
                )

        thread = threading.Thread(target=say, name="dist_testing-waiting", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


def own_listener(host: str, port: int) -> socket.socket:
    """Return a socket that listens at one address of this machine, and at no other."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server((str(address[0]), port), family=family, backlog=socket.SOMAXCONN)


def interface_env(address: str) -> dict[str, str]:
    """Return the variables with the network interface of this machine that has an address; none if none has."""
    for name, found in psutil.net_if_addrs().items():
        if any(one.address == address for one in found):
            return dict.fromkeys(INTERFACE_VARIABLES, name)
    return {}


def reachable_host(rank_info: RankInfo) -> str:
    """Return the address of this machine, which is that of rank 0, for other nodes; a LaunchError if it has none."""
    host = os.environ.get(ADDRESS_VARIABLE) or rank_info.address
    try:
        with own_listener(host, 0) as listener:
            found = str(listener.getsockname()[0])
        problem = "only this machine reaches it" if found.startswith("127.") or found == "::1" else ""
    except OSError as error:
        found, problem = "", f"rank 0 cannot listen there: {error.strerror or error}"
    if problem and not (rank_info.node and found):
        raise LaunchError(
            f"Ranks of other nodes cannot reach rank 0 at {host}: {problem}.\n"
            f"The address is that of MASTER_ADDR={rank_info.address}, or of {ADDRESS_VARIABLE}.\n"
            f"Set {ADDRESS_VARIABLE} to the address of rank 0's machine in the network of the nodes."
        )
    return found


Env = Mapping[str, str]

# $TORCHELASTIC_RUN_ID (launcher): name of the run, in each process that the agent of torchrun starts.
_RUN_ID = "TORCHELASTIC_RUN_ID"
# Ports for jobs whose launcher names none. Below the range from which Linux takes ports for connections.
_FIRST_PORT, _PORTS = 20000, 10000
# The longest prefix without a comma outside brackets. Brackets do not nest.
_FIRST_HOST = re.compile(r"((?:[^][,]|\[[^][]*\])+)(?:,|$)")
_FIRST_IN_BRACKETS = re.compile(r"\[(\d+)[-,\d]*\]")
_HOST = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Names:
    """The variables of a launcher. "" for a fact that it does not tell."""

    launcher: str  # its name in messages
    rank: str
    size: str
    local_size: str  # number of ranks of the node
    node: str  # number of the node; OMPI_COMM_WORLD_NODE_RANK is not: it counts processes of the node
    nodes: str
    starter: str  # the command that starts the ranks


# $RANK, $WORLD_SIZE, $LOCAL_WORLD_SIZE, $GROUP_RANK, $GROUP_WORLD_SIZE (launcher): with torchrun: this process is a
# rank of an attached world; with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are necessary.
# $MASTER_ADDR, $MASTER_PORT (launcher): host of rank 0, and a free port there. Set them yourself if the launcher does
# not.
# $OMPI_COMM_WORLD_RANK, $OMPI_COMM_WORLD_SIZE, $OMPI_COMM_WORLD_LOCAL_SIZE, $PMIX_NAMESPACE (launcher): with Open MPI:
# rank, number of ranks, number of ranks of the node, name of the job.
# $SLURM_PROCID, $SLURM_STEP_NUM_TASKS, $SLURM_NODEID, $SLURM_STEP_NUM_NODES, $SLURM_STEP_NODELIST, $SLURM_JOB_ID,
# $SLURM_STEP_ID (launcher): with srun: rank, number of ranks, node, number of nodes, names of the nodes, job, step.
# $PMI_RANK, $PMI_SIZE, $MPI_LOCALNRANKS (launcher): with MPICH or Intel MPI: rank, number of ranks, number of ranks of
# the node.
# $PET_NNODES (launcher): number of nodes for torchrun; above 1 without RANK it is an error, as torchrun is missing.
# $TORCHELASTIC_RESTART_COUNT (launcher): with torchrun: how often the ranks have been started again.
TORCHRUN = Names("torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "torchrun")
OPEN_MPI = Names(
    "Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "", "", "mpirun"
)
SLURM = Names("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "", "SLURM_NODEID", "SLURM_STEP_NUM_NODES", "srun")
HYDRA = Names("hydra", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "", "", "mpiexec")
# The first that has set its variables counts. torchrun may run in a task of srun or mpirun, and mpirun's daemons are
# tasks of srun. srun, too, sets PMI_RANK.
LAUNCHERS = (TORCHRUN, OPEN_MPI, SLURM, HYDRA)


def rank_info_in(env: Env) -> RankInfo | None:
    """Return this process's rank info from its launcher's variables; None if it is no rank of a world.

    A task of Slurm or MPI that has no peers belongs to no world: the library starts the ranks itself. A UsageError
    refuses variables that are incomplete, impossible, or contradict each other.
    """
    names = _launcher_in(env)
    if names is None:
        if env.get("PET_NNODES", "1") != "1":
            # Without torchrun the pods would not find each other.
            raise UsageError(
                f"PET_NNODES={env['PET_NNODES']} is set without RANK.\n"
                "These variables are options of torchrun, so this program was started in a pod without torchrun.\n"
                "Start it in each pod with `torchrun -m pytest ...`; or unset PET_NNODES, and the library starts the "
                "ranks."
            )
        return None
    of_torchrun = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if names is TORCHRUN and (missing := [name for name in of_torchrun if name not in env]):
        raise _wrong(names, f"RANK={env['RANK']} is set without {', '.join(missing)}")
    size = _number(env, names, names.size, 1, MAX_WORLD_SIZE)
    rank = _number(env, names, names.rank, 0, size - 1)
    if names is TORCHRUN and _RUN_ID not in env:
        _check_by_hand(env, rank, size)
    # What a launcher does not tell is one node.
    local_size = _number(env, names, names.local_size, 1, size) if names.local_size in env else size
    nodes = _number(env, names, names.nodes, 1, size) if names.nodes in env else 1
    has_other_nodes = nodes > 1 or local_size < size
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
        node=env.get(names.node, ""),
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
    names = _launcher_in({name: value for name, value in env.items() if name != TORCHRUN.rank})
    if names is None:
        return
    started = _number(env, names, names.size, 1, MAX_WORLD_SIZE)
    own = _number(env, names, names.rank, 0, started - 1)
    # More ranks than tasks: each task has started several.
    if started > size:
        one, other, cause = "WORLD_SIZE", names.size, f"Some tasks of {names.launcher} are no rank."
    elif started == size and own != rank:
        one, other, cause = "RANK", names.rank, "Two ranks would have the same number."
    else:
        return
    raise _wrong(TORCHRUN, f"{one}={env[one]} and {other}={env[other]} contradict each other", cause)


def _address(env: Env, names: Names, *, has_other_nodes: bool) -> tuple[str, int]:
    address, job = env.get("MASTER_ADDR", ""), ""
    if names is SLURM:
        # The step's list: a step may use some nodes of its job only, and rank 0 is on the first of them.
        hosts = env.get("SLURM_STEP_NODELIST", "")
        address = address or (first_host("SLURM_STEP_NODELIST", hosts) if hosts else "")
        job = f"slurm {env.get('SLURM_JOB_ID', '')}.{env.get('SLURM_STEP_ID', '')}"
    elif names is OPEN_MPI:
        job = env.get("PMIX_NAMESPACE", "")
    if not has_other_nodes and names is not TORCHRUN:
        address = address or LOOPBACK
    if "MASTER_PORT" in env:
        port = _number(env, names, "MASTER_PORT", 1, 65535)
    else:
        # The same for all ranks of the job, and another one for other jobs.
        port = _FIRST_PORT + zlib.crc32(job.encode()) % _PORTS if job else 0
    missing = [name for name, value in (("MASTER_ADDR", address), ("MASTER_PORT", port)) if not value]
    if not missing:
        return address, port
    raise UsageError(
        f"{names.rank}={env[names.rank]} is set without {' and '.join(missing)}.\n"
        f"{names.launcher} does not tell the ranks which node has rank 0, so they cannot connect to it.\n"
        "Set MASTER_ADDR to the host of rank 0, and MASTER_PORT to a free port there, for all ranks: "
        f"`mpirun -x {missing[0]}=...`, for example."
    )


def first_host(name: str, text: str) -> str:
    """Return the first host of Slurm's compressed list of nodes in the variable `name`: `n01` of `n[01-03,07],gpu5`."""
    # Several pairs of brackets, as in "rack[0-1]n[1-4]": the first of each.
    first = _FIRST_HOST.match(text)
    host = _FIRST_IN_BRACKETS.sub(r"\1", first[1]) if first else ""
    if _HOST.fullmatch(host):
        return host
    raise UsageError(
        f"{name}={text!r}: cannot be read as a list of nodes.\n"
        "Rank 0 is on the first node of the list; expected a list such as n[1-2,5].\n"
        "Set MASTER_ADDR to the host of rank 0, and MASTER_PORT to a free port there."
    )


def _wrong(names: Names, what: str, cause: str = "") -> UsageError:
    cause = (
        cause or f"With {names.rank} set, this process is a rank of an existing world, as {names.launcher} makes one."
    )
    way_out = f"Start it with {names.starter}; or unset {names.rank}, and the library starts the ranks itself."
    return UsageError(f"{what}.\n{cause}\n{way_out}")


def _number(env: Env, names: Names, name: str, least: int, most: int) -> int:
    text = env.get(name)
    if text is None:
        raise _wrong(names, f"{names.rank}={env[names.rank]} is set without {name}")
    if (number := number_in(text)) is not None and least <= number <= most:
        return number
    raise _wrong(names, f"{name}={text!r}: expected a number from {least} to {most}")
