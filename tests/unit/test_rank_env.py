"""The environment that the runner gives to ranks."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping

import pytest

from dist_testing.engine import rank_env as module
from dist_testing.engine.rank_env import cpu_count, rank_env, threads_per_rank

INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
# Of Bazel's test encyclopedia: those that make whoever reads them write, shard, filter or stop.
PROTOCOL = (
    "TEST_INFRASTRUCTURE_FAILURE_FILE",
    "TEST_LOGSPLITTER_OUTPUT_FILE",
    "TEST_PREMATURE_EXIT_FILE",
    "TEST_SHARD_INDEX",
    "TEST_SHARD_STATUS_FILE",
    "TEST_TOTAL_SHARDS",
    "TEST_UNUSED_RUNFILES_LOG_FILE",
    "TEST_WARNINGS_OUTPUT_FILE",
    "TESTBRIDGE_TEST_ONLY",
    "TESTBRIDGE_TEST_RUNNER_FAIL_FAST",
    "XML_OUTPUT_FILE",
)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight CPUs, one loopback and one other interface."""
    monkeypatch.setattr(module, "cpu_count", lambda: 8)
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "eth0"), (2, "lo")])


def made(env: Mapping[str, str], **backend_env: str) -> dict[str, str]:
    """The environment for a world of two, without a scratch folder."""
    return rank_env(env, world_size=2, backend_env=backend_env, scratch=None, temp="/t")


@pytest.mark.parametrize("name", PROTOCOL)
def test_ranks_do_not_speak_bazels_protocol(name: str) -> None:
    """A test that runs pytest in a rank would overwrite the runner's XML, or run one shard of its own cases."""
    assert name not in made({name: "x", "HOME": "/h"})


@pytest.mark.parametrize("name", ["HOME", "PATH", "TEST_TMPDIR", "TEST_SRCDIR", "TEST_WORKSPACE", "RUNFILES_DIR", "A"])
def test_everything_else_is_inherited(name: str) -> None:
    """Tests set variables before the ranks start, and expect the ranks to see them."""
    assert made({name: "x"})[name] == "x"


def test_the_runners_own_environment_is_not_touched() -> None:
    """The next world starts from it again."""
    env = {"XML_OUTPUT_FILE": "x", "A": "1"}
    made(env)
    assert env == {"XML_OUTPUT_FILE": "x", "A": "1"}


@pytest.mark.parametrize("name", INTERFACES)
def test_loopback_is_pinned_unless_the_user_chose(name: str) -> None:
    """In a sandbox the host's name may have no address."""
    assert made({})[name] == "lo"
    assert made({name: "eth7"})[name] == "eth7"


@pytest.mark.parametrize("names", [["eth0"], []])
def test_without_a_loopback_interface_nothing_is_pinned(monkeypatch: pytest.MonkeyPatch, names: list[str]) -> None:
    """A network namespace can have none, and gloo fails on a name that does not exist."""
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(names, 1)))
    assert "GLOO_SOCKET_IFNAME" not in made({})


@pytest.mark.parametrize(("world_size", "threads"), [(1, 8), (2, 4), (3, 2), (8, 1), (64, 1)])
def test_ranks_share_the_cpus(world_size: int, threads: int) -> None:
    """Eight ranks with eight threads each make a machine of eight CPUs crawl."""
    assert threads_per_rank(world_size, {}) == threads
    env = rank_env({}, world_size=world_size, backend_env={}, scratch=None, temp="/t")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        assert env[name] == str(threads)


@pytest.mark.parametrize(("name", "other"), [("OMP", "MKL"), ("MKL", "OMP")])
def test_threads_are_the_users_as_soon_as_one_variable_is(name: str, other: str) -> None:
    """Half of the decision would be worse than none of it."""
    env = made({f"{name}_NUM_THREADS": "3"})
    assert env[f"{name}_NUM_THREADS"] == "3"
    assert f"{other}_NUM_THREADS" not in env


def test_a_rank_is_told_what_the_user_has_decided() -> None:
    """The variable alone comes too late for a library that is loaded already."""
    assert threads_per_rank(2, {"OMP_NUM_THREADS": "3"}) == 3


@pytest.mark.parametrize("env", [{"MKL_NUM_THREADS": "3"}, {"OMP_NUM_THREADS": "4,2"}, {"OMP_NUM_THREADS": "many"}])
def test_what_only_the_library_understands_is_left_to_it(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nested levels, other libraries' variables, and nonsense."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert threads_per_rank(2, env) == 0


def test_the_backends_variables_are_defaults() -> None:
    """A user's value stays."""
    assert made({}, NCCL_DEBUG="WARN")["NCCL_DEBUG"] == "WARN"
    assert made({"NCCL_DEBUG": "INFO"}, NCCL_DEBUG="WARN")["NCCL_DEBUG"] == "INFO"


def test_caches_are_under_the_scratch_folder() -> None:
    """Compilers would write into the home folder, which a sandbox does not have."""
    env = rank_env({"TRITON_CACHE_DIR": "/mine"}, world_size=2, backend_env={}, scratch="/tmp/x", temp="/t")
    assert env["TORCHINDUCTOR_CACHE_DIR"].startswith("/tmp/x/cache/")
    assert env["TORCH_EXTENSIONS_DIR"].startswith("/tmp/x/cache/")
    assert env["TORCHINDUCTOR_CACHE_DIR"] != env["TORCH_EXTENSIONS_DIR"]
    assert env["TRITON_CACHE_DIR"] == "/mine"


def test_a_sandbox_has_a_user_and_a_shell_keeps_its_own() -> None:
    """For a cache path torch asks for a name, and fails where there is none."""
    assert rank_env({}, world_size=1, backend_env={}, scratch="/tmp/x", temp="/t")["USER"]
    assert rank_env({"USER": "ada"}, world_size=1, backend_env={}, scratch="/tmp/x", temp="/t")["USER"] == "ada"


def test_without_a_scratch_folder_caches_stay_where_they_are() -> None:
    """Outside Bazel they are the user's, and warm."""
    assert "TRITON_CACHE_DIR" not in made({})
    assert "USER" not in made({})


def test_cpus_are_those_that_this_process_may_use() -> None:
    """A container has fewer than the machine."""
    assert cpu_count() >= 1
