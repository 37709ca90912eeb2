"""What the variables of each launcher say about a process, and the traps in them."""

from __future__ import annotations

import pytest

from dist_testing.attach.rank_info import LAUNCHERS, RankInfo, first_host, rank_info_in
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.pytest.plugin import LAUNCHER_VARIABLES
from tests.support.results import refusal

# As read from runs on two nodes with two ranks each, on rank 2.
_HAND = "RANK=2 WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500"
_TORCHRUN = (
    f"{_HAND} LOCAL_RANK=0 GROUP_RANK=1 GROUP_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=run TORCHELASTIC_RESTART_COUNT=1 "
    "TORCHELASTIC_USE_AGENT_STORE=True"
)
_SRUN = (
    "SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_STEP_NUM_NODES=2 SLURM_JOB_ID=7 "
    "SLURM_STEP_ID=0 SLURM_JOB_NODELIST=n[1-4] SLURM_STEP_NODELIST=n[3-4]"
)
# The node rank of Open MPI counts the processes of a node, over all jobs.
_MPIRUN = (
    "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=2 "
    "OMPI_COMM_WORLD_NODE_RANK=1 PMIX_NAMESPACE=1066729473"
)
_HYDRA = "PMI_RANK=2 PMI_SIZE=4 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2"
_MASTER = " MASTER_ADDR=n3 MASTER_PORT=1234"


def _info(text: str) -> RankInfo | None:
    """Return what variables say; the last word with a name counts."""
    return rank_info_in(dict(word.split("=") for word in text.split()))


@pytest.mark.parametrize(
    ("env", "launcher", "node", "address"),
    [
        (_TORCHRUN, "torchrun", "1", "10.0.0.1"),
        (_HAND, "torchrun", "", "10.0.0.1"),
        (_SRUN, "Slurm", "1", "n3"),
        (_SRUN + _MASTER.replace("n3", "n5"), "Slurm", "1", "n5"),
        (_MPIRUN + _MASTER, "Open MPI", "", "n3"),
        (_HYDRA + _MASTER, "hydra", "", "n3"),
        # Of two launchers, the inner one counts: torchrun or mpirun in tasks of srun, in any order; srun with PMI.
        (f"{_SRUN} {_TORCHRUN}", "torchrun", "1", "10.0.0.1"),
        (f"{_SRUN} {_TORCHRUN} SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1", "torchrun", "1", "10.0.0.1"),
        (f"{_SRUN} {_TORCHRUN} SLURM_PROCID=3", "torchrun", "1", "10.0.0.1"),
        (f"{_SRUN} {_MPIRUN}{_MASTER} SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1", "Open MPI", "", "n3"),
        (f"{_SRUN} {_HYDRA}", "Slurm", "1", "n3"),
        (f"{_SRUN} {_HAND}", "torchrun", "", "10.0.0.1"),
    ],
)
def test_each_launcher_is_understood(env: str, launcher: str, node: str, address: str) -> None:
    """If this fails, a documented launcher cannot start the ranks, or a rank takes itself for another one."""
    info = _info(env)
    assert info is not None
    assert (info.launcher, info.rank, info.size) == (launcher, 2, 4)
    assert (info.node, info.address, info.has_other_nodes) == (node, address, True)
    # A restart of torchrun must not find keys of the first start.
    assert (info.is_served, info.attempt) == ((True, "run/1") if "TORCHELASTIC" in env else (False, "/0"))


def test_the_variables_of_env_are_enough() -> None:
    """If this fails, a user who sets the four variables of `env://` by hand gets no world."""
    expected = RankInfo(2, 4, "10.0.0.1", 29500, is_served=False, attempt="/0")
    assert _info(_HAND.replace("LOCAL_WORLD_SIZE", "OTHER")) == expected


def test_ports_differ_between_steps_and_agree_within_one() -> None:
    """If this fails, two steps of Slurm on one node want the same port, or the ranks of one differ."""
    infos = [_info(f"{_SRUN} {more}") for more in ("", "SLURM_PROCID=3", "SLURM_STEP_ID=1")]
    first, same, other = (info.port for info in infos if info)
    assert first == same != other
    assert 20000 <= first < 30000


@pytest.mark.parametrize(
    "env",
    [
        "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_NODELIST=n[1-2]",  # the shell of a batch script
        f"{_SRUN} SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1",
        "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1",
        "PET_NNODES=1",
        "",
    ],
)
def test_a_process_without_peers_is_in_no_world(env: str) -> None:
    """If this fails, plain pytest in an allocation waits for ranks that do not exist."""
    assert _info(env) is None


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("RANK=1", "RANK=1 is set without WORLD_SIZE, MASTER_ADDR, MASTER_PORT."),
        (f"{_HAND} RANK=", "RANK='': expected a number from 0 to 3."),
        (f"{_HAND} WORLD_SIZE=four", "WORLD_SIZE='four': expected a number from 1 to"),
        (f"{_SRUN} {_HAND} RANK=0", "RANK=0 and SLURM_PROCID=2 contradict each other."),
        (f"{_MPIRUN} {_HAND} WORLD_SIZE=3", "WORLD_SIZE=3 and OMPI_COMM_WORLD_SIZE=4 contradict each other."),
        (f"{_TORCHRUN} LOCAL_WORLD_SIZE=5", "LOCAL_WORLD_SIZE='5': expected a number from 1 to 4."),
        (f"{_SRUN} SLURM_PROCID=4", "SLURM_PROCID='4': expected a number from 0 to 3."),
        (f"{_SRUN} SLURM_STEP_NODELIST=n[3-4", "SLURM_STEP_NODELIST='n[3-4': cannot be read as a list of nodes."),
        (_MPIRUN, "OMPI_COMM_WORLD_RANK=2 is set without MASTER_ADDR."),
        (_HYDRA, "PMI_RANK=2 is set without MASTER_ADDR and MASTER_PORT."),
        (f"{_MPIRUN}{_MASTER} MASTER_PORT=0", "MASTER_PORT='0': expected a number from 1 to 65535."),
        ("PET_NNODES=2 PET_NODE_RANK=1", "PET_NNODES=2 is set without RANK."),
    ],
)
def test_what_cannot_be_is_a_clear_error(env: str, said: str) -> None:
    """If this fails, variables that contradict each other cause a hang, a traceback or a world of wrong ranks."""
    assert refusal(lambda: _info(env)).startswith(said)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("n[1-2,5]", "n1"),
        ("n[5,1-2]", "n5"),
        ("gpu[007-010],n1", "gpu007"),
        ("a,b,c", "a"),
        ("rack[0-1]n[04-09].example,z", "rack0n04.example"),
        ("login-1.cluster", "login-1.cluster"),
    ],
)
def test_the_first_node_of_a_list(text: str, host: str) -> None:
    """Slurm compresses the names of nodes."""
    assert first_host("LIST", text) == host


@pytest.mark.parametrize("text", ["", ",", "n[", "n[]", "n[a-b]", "n[1-2]]", "[[1]]", "n 1", "n[1-2;3]", "n1;rm"])
def test_a_list_that_cannot_be_read(text: str) -> None:
    """If this fails, the ranks look for rank 0 on a node that does not exist."""
    with pytest.raises(UsageError, match="cannot be read as a list of nodes"):
        first_host("LIST", text)


def test_the_plugin_notices_every_launcher() -> None:
    """If this fails, a rank of a launcher takes part in the session as if it were alone."""
    assert all(names.rank.endswith(LAUNCHER_VARIABLES) for names in LAUNCHERS)
