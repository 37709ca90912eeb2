"""What the variables of each launcher say about a process, and the traps in them."""

from __future__ import annotations

import pytest

from dist_testing.attach.launchers import LAUNCHERS, first_host, rank_info_in
from dist_testing.attach.rank_info import RankInfo
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.pytest.plugin import LAUNCHER_VARIABLES

# As read from runs on two nodes with two ranks each, on rank 2.
_TORCHRUN = {
    "RANK": "2",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "run",
    "TORCHELASTIC_RESTART_COUNT": "1",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
_BY_HAND = {name: _TORCHRUN[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
_SRUN = {
    "SLURM_PROCID": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "n[1-4]",
    "SLURM_STEP_NODELIST": "n[3-4]",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
}
_MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_NODE_RANK": "0",
    "PMIX_NAMESPACE": "1066729473",
}
_HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
_MASTER = {"MASTER_ADDR": "n3", "MASTER_PORT": "1234"}


def _info(env: dict[str, str]) -> RankInfo:
    info = rank_info_in(env)
    assert info is not None
    return info


@pytest.mark.parametrize(
    ("env", "launcher", "node", "address"),
    [
        (_TORCHRUN, "torchrun", "1", "10.0.0.1"),
        (_SRUN, "Slurm", "1", "n3"),
        ({**_SRUN, **_MASTER}, "Slurm", "1", "n3"),
        ({**_MPIRUN, **_MASTER}, "Open MPI", "", "n3"),
        ({**_HYDRA, **_MASTER}, "hydra", "", "n3"),
    ],
    ids=["torchrun", "srun", "srun with an address", "mpirun", "hydra"],
)
def test_each_launcher_is_understood(env: dict[str, str], launcher: str, node: str, address: str) -> None:
    """If this fails, a documented launcher cannot start the ranks, or a rank takes itself for another one."""
    info = _info(env)
    assert (info.launcher, info.rank, info.size) == (launcher, 2, 4)
    assert (info.node, info.address, info.has_other_nodes) == (node, address, True)
    assert info.is_served == (launcher == "torchrun")


def test_torchrun_and_hand_differ_in_who_serves_the_store() -> None:
    """If this fails, a restarted world finds keys of an earlier start, or variables of `env://` are not enough."""
    assert (_info(_TORCHRUN).attempt, _info(_TORCHRUN).is_served) == ("run/1", True)
    four = {name: value for name, value in _BY_HAND.items() if name != "LOCAL_WORLD_SIZE"}
    assert _info(four) == RankInfo(2, 4, "10.0.0.1", 29500, is_served=False, attempt="/0")
    assert _info(_BY_HAND).has_other_nodes


def test_ports_differ_between_steps_and_agree_within_one() -> None:
    """If this fails, two steps of Slurm on one node want the same port, or the ranks of one differ."""
    ports = [_info({**_SRUN, "SLURM_STEP_ID": step}).port for step in ("0", "1")]
    assert ports[0] != ports[1]
    assert _info({**_SRUN, "SLURM_PROCID": "3", "SLURM_LOCALID": "1"}).port == ports[0]
    assert all(20000 <= port < 30000 for port in ports)


@pytest.mark.parametrize(
    "env",
    [
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "n[1-2]"},
        {**_SRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"PET_NNODES": "1"},
        {},
    ],
    ids=["shell of a batch script", "one task", "one process", "one pod", "nothing"],
)
def test_a_process_without_peers_is_in_no_world(env: dict[str, str]) -> None:
    """If this fails, plain pytest in an allocation waits for ranks that do not exist."""
    assert rank_info_in(env) is None


@pytest.mark.parametrize(
    ("env", "launcher"),
    [
        ({**_SRUN, **_TORCHRUN}, "torchrun"),
        ({**_SRUN, **_TORCHRUN, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}, "torchrun"),
        ({**_SRUN, **_TORCHRUN, "SLURM_PROCID": "3"}, "torchrun"),
        ({**_SRUN, **_MPIRUN, **_MASTER, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}, "Open MPI"),
        ({**_SRUN, **_HYDRA}, "Slurm"),
        ({**_SRUN, **_BY_HAND}, "torchrun"),
    ],
    ids=[
        "torchrun per task",
        "torchrun per node",
        "agents in another order",
        "mpirun on srun",
        "srun with PMI",
        "script",
    ],
)
def test_of_two_launchers_the_inner_one_counts(env: dict[str, str], launcher: str) -> None:
    """If this fails, every rank of a node takes the number of the task that has started it."""
    info = _info(env)
    assert (info.launcher, info.rank, info.size) == (launcher, 2, 4)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({**_SRUN, **_BY_HAND, "RANK": "0"}, "RANK=0 and SLURM_PROCID=2 contradict each other."),
        ({**_MPIRUN, **_BY_HAND, "WORLD_SIZE": "3"}, "WORLD_SIZE=3 and OMPI_COMM_WORLD_SIZE=4 contradict each other."),
        ({"RANK": "1"}, "RANK=1 is set without WORLD_SIZE, MASTER_ADDR, MASTER_PORT."),
        ({**_BY_HAND, "RANK": ""}, "RANK='': expected a number from 0 to 3."),
        ({**_BY_HAND, "WORLD_SIZE": "four"}, "WORLD_SIZE='four': expected a number from 1 to"),
        ({**_TORCHRUN, "LOCAL_WORLD_SIZE": "5"}, "LOCAL_WORLD_SIZE='5': expected a number from 1 to 4."),
        ({**_SRUN, "SLURM_PROCID": "4"}, "SLURM_PROCID='4': expected a number from 0 to 3."),
        ({**_SRUN, "SLURM_STEP_NODELIST": "n[3-4"}, "SLURM_STEP_NODELIST='n[3-4': cannot be read as a list of nodes."),
        (_MPIRUN, "OMPI_COMM_WORLD_RANK=2 is set without MASTER_ADDR."),
        (_HYDRA, "PMI_RANK=2 is set without MASTER_ADDR and MASTER_PORT."),
        ({**_MPIRUN, **_MASTER, "MASTER_PORT": "0"}, "MASTER_PORT='0': expected a number from 1 to 65535."),
        ({"PET_NNODES": "2", "PET_NODE_RANK": "1"}, "PET_NNODES=2 is set without RANK."),
    ],
)
def test_what_cannot_be_is_a_clear_error(env: dict[str, str], said: str) -> None:
    """If this fails, variables that contradict each other cause a hang, a traceback or a world of wrong ranks."""
    with pytest.raises(UsageError) as caught:
        rank_info_in(env)
    text = str(caught.value)
    assert text.startswith(said)
    assert len(text.splitlines()) == 3


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


@pytest.mark.parametrize(
    "text", ["", ",", "n[", "n[]", "n[a-b]", "n[1-2]]", "[[1]]", "n 1", "n[1-2;3]", "n1;rm", "$(x)"]
)
def test_a_list_that_cannot_be_read(text: str) -> None:
    """If this fails, the ranks look for rank 0 on a node that does not exist."""
    with pytest.raises(UsageError, match="cannot be read as a list of nodes"):
        first_host("LIST", text)


def test_the_plugin_notices_every_launcher() -> None:
    """If this fails, a rank of a launcher takes part in the session as if it were alone."""
    for names in LAUNCHERS:
        assert names.rank.endswith(LAUNCHER_VARIABLES)
