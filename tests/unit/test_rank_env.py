"""The environment that the runner gives to ranks, and each rank's own variables."""

from __future__ import annotations

import os
import re
import socket
import sys
import tempfile
from collections.abc import Mapping

import pytest

from dist_testing.core.engine import rank_env as module
from dist_testing.core.engine.rank_env import cpu_count, rank_env, threads_per_rank
from dist_testing.core.ground.layout import LOOPBACK, Layout
from dist_testing.core.rank.bootstrap import world_env

# The variables of Bazel's test encyclopedia that make a program write, shard, filter or stop.
PROTOCOL = (
    "BAZEL_TEST",
    "COVERAGE_DIR",
    "COVERAGE_MANIFEST",
    "COVERAGE_OUTPUT_FILE",
    "TEST_INFRASTRUCTURE_FAILURE_FILE",
    "TEST_LOGSPLITTER_OUTPUT_FILE",
    "TEST_PREMATURE_EXIT_FILE",
    "TEST_SHARD_INDEX",
    "TEST_SHARD_STATUS_FILE",
    "TEST_TOTAL_SHARDS",
    "TEST_UNDECLARED_OUTPUTS_ANNOTATIONS_DIR",
    "TEST_UNDECLARED_OUTPUTS_MANIFEST",
    "TEST_UNUSED_RUNFILES_LOG_FILE",
    "TEST_WARNINGS_OUTPUT_FILE",
    "TESTBRIDGE_TEST_ONLY",
    "TESTBRIDGE_TEST_RUNNER_FAIL_FAST",
    "XML_OUTPUT_FILE",
)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with eight CPUs, a loopback interface and another interface."""
    monkeypatch.setattr(module, "cpu_count", lambda: 8)
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "eth0"), (2, "lo")])


def made(env: Mapping[str, str], *, size: int = 2, scratch: str | None = None, **backend_env: str) -> dict[str, str]:
    """Return the environment for ranks; the runner's own one stays as it is."""
    before = dict(env)
    found = rank_env(env, world_size=size, backend_env=backend_env, scratch=scratch, temp="/t")
    assert env == before, "the next world would start from a changed environment"
    return found


def test_ranks_do_not_see_bazels_protocol() -> None:
    """If this fails, a test that runs pytest in a rank overwrites the runner's XML, or runs one shard of its cases."""
    assert not made(dict.fromkeys(PROTOCOL, "x")).keys() & set(PROTOCOL)


def test_everything_else_is_inherited() -> None:
    """If this fails, ranks do not see a variable that a test set before they started."""
    names = ["HOME", "PATH", "TEST_TMPDIR", "TEST_SRCDIR", "TEST_WORKSPACE", "RUNFILES_DIR", "A"]
    assert made(dict.fromkeys(names, "x")).items() >= dict.fromkeys(names, "x").items()


@pytest.mark.parametrize(
    ("name", "default"),
    [
        # In a sandbox the host's name may have no address.
        ("GLOO_SOCKET_IFNAME", "lo"),
        ("NCCL_SOCKET_IFNAME", "lo"),
        ("TP_SOCKET_IFNAME", "lo"),
        # Reports need native stacks, the last words of a C library, and the calls of a hang.
        ("LIBC_FATAL_STDERR_", "1"),
        ("TORCH_DISABLE_ADDR2LINE", "1"),
        ("TORCH_FR_BUFFER_SIZE", "[1-9][0-9]*"),
        ("TORCH_SHOW_CPP_STACKTRACES", "1"),
        # torch asks for 127.0.0.1, and each answer that is lost would take 5 s.
        ("RES_OPTIONS", ".*timeout:1.*"),
        # The backend's own.
        ("NCCL_DEBUG", "WARN"),
    ],
)
def test_a_default_holds_unless_the_user_chose(name: str, default: str) -> None:
    """If this fails, a world hangs or a report lacks its causes, or the user's value is overridden."""
    assert re.fullmatch(default, made({}, NCCL_DEBUG="WARN")[name])
    assert made({name: "0"}, NCCL_DEBUG="WARN")[name] == "0"


@pytest.mark.parametrize("names", [["eth0"], []])
def test_loopback_is_found_by_its_known_names(monkeypatch: pytest.MonkeyPatch, names: list[str]) -> None:
    """If this fails, ranks on macOS, where loopback has another name, get a missing interface."""
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(names, 1)))
    assert "GLOO_SOCKET_IFNAME" not in made({})


@pytest.mark.parametrize(("world_size", "threads"), [(1, 8), (2, 4), (3, 2), (8, 1), (64, 1)])
def test_ranks_share_the_cpus(world_size: int, threads: int) -> None:
    """If this fails, eight ranks with eight threads each slow down a machine of eight CPUs."""
    assert threads_per_rank(world_size, {}) == threads
    # A library that is loaded already would ignore the variable.
    assert threads_per_rank(world_size, {"OMP_NUM_THREADS": "3"}) == 3
    env = made({}, size=world_size)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        assert env[name] == str(threads)


@pytest.mark.parametrize(("name", "other"), [("OMP", "MKL"), ("MKL", "OMP")])
def test_one_variable_of_the_user_decides_about_all_threads(name: str, other: str) -> None:
    """If this fails, the library overrides half of the user's decision about threads."""
    env = made({f"{name}_NUM_THREADS": "3"})
    assert env[f"{name}_NUM_THREADS"] == "3"
    assert f"{other}_NUM_THREADS" not in env


@pytest.mark.parametrize("env", [{"MKL_NUM_THREADS": "3"}, {"OMP_NUM_THREADS": "4,2"}, {"OMP_NUM_THREADS": "many"}])
def test_values_that_only_the_thread_library_understands_are_left_to_it(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, the library misreads nested levels, other libraries' variables or invalid values."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert threads_per_rank(2, env) == 0


def test_caches_and_temporary_files_are_under_the_folders_of_the_run() -> None:
    """If this fails, compilers write into the home folder, which a sandbox lacks, or files outlive their case."""
    assert made({})["TMPDIR"] == made({"TMPDIR": "/mine"})["TMPDIR"] == "/t"
    env = made({"TRITON_CACHE_DIR": "/mine", "USER": "ada"}, scratch="/tmp/x")
    assert env["TORCHINDUCTOR_CACHE_DIR"].startswith("/tmp/x/cache/")
    assert env["TORCH_EXTENSIONS_DIR"].startswith("/tmp/x/cache/")
    assert env["TORCHINDUCTOR_CACHE_DIR"] != env["TORCH_EXTENSIONS_DIR"]
    assert (env["TRITON_CACHE_DIR"], env["USER"]) == ("/mine", "ada")
    env = made({}, scratch="/tmp/x")
    assert env["TRITON_CACHE_DIR"] == "/tmp/x/cache/triton"
    assert env["USER"], "torch needs a name for a cache path, and a sandbox has none"
    # Outside Bazel the user's caches are warm.
    assert not made({}).keys() & {"TRITON_CACHE_DIR", "USER"}


def test_a_cache_folder_that_torch_has_chosen_in_the_runner_is_not_the_users() -> None:
    """If this fails, tests share a cache outside the sandbox as soon as their file imports torch._dynamo."""
    chosen = os.path.join(tempfile.gettempdir(), "torchinductor_ada")
    names = {"TORCHINDUCTOR_CACHE_DIR": chosen}
    assert made(names, scratch="/tmp/x")["TORCHINDUCTOR_CACHE_DIR"].startswith("/tmp/x/cache/")
    assert made(names)["TORCHINDUCTOR_CACHE_DIR"] == chosen
    mine = {"TORCHINDUCTOR_CACHE_DIR": "/mine/torchinductor_ada"}
    assert mine.items() <= made(mine, scratch="/tmp/x").items()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not restrict a process to some CPUs")
def test_cpus_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a rank in a container gets threads for CPUs that it may not use."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5})
    assert cpu_count() == 2


@pytest.mark.parametrize("size", [1, 4, 64])
def test_variables_are_those_of_torchrun_on_one_node(size: int) -> None:
    """If this fails, code under test that reads these variables learns a wrong rank or world size."""
    layout = Layout(size)
    env = {**world_env({}, layout, 29500), **layout.rank_env(size - 1)}
    assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"]) == (str(size), str(size))
    assert (env["RANK"], env["LOCAL_RANK"]) == (str(size - 1), str(size - 1))
    assert (env["GROUP_RANK"], env["GROUP_WORLD_SIZE"]) == ("0", "1")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == (LOOPBACK, "29500")


@pytest.mark.parametrize(("store_port", "is_told"), [(29500, False), (0, True)])
def test_store_of_torchrun_is_not_the_store_of_a_world(store_port: int, is_told: bool) -> None:
    """If this fails, under torchrun no rank serves a store at a test's own port, or none where the world has none."""
    env = world_env({"TORCHELASTIC_USE_AGENT_STORE": "True", "KEPT": "1"}, Layout(2), store_port)
    assert ("TORCHELASTIC_USE_AGENT_STORE" in env) is is_told
    assert env["KEPT"] == "1"
    assert env.items() >= world_env({}, Layout(2), store_port).items()
    # Without a store, env:// must not wait for an address at which no store listens.
    assert any(name.startswith("MASTER_") for name in env) is (store_port > 0)
