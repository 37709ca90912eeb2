"""The environment that the runner gives to ranks."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Mapping

import pytest

from dist_testing.core.engine import rank_env as module
from dist_testing.core.engine.rank_env import cpu_count, rank_env, threads_per_rank

INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
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


def made(env: Mapping[str, str], **backend_env: str) -> dict[str, str]:
    """Return the environment for a world of two, without a scratch folder."""
    return rank_env(env, world_size=2, backend_env=backend_env, scratch=None, temp="/t")


@pytest.mark.parametrize("name", PROTOCOL)
def test_ranks_do_not_see_bazels_protocol(name: str) -> None:
    """If this fails, a test that runs pytest in a rank overwrites the runner's XML, or runs one shard of its cases."""
    assert name not in made({name: "x", "HOME": "/h"})


@pytest.mark.parametrize("name", ["HOME", "PATH", "TEST_TMPDIR", "TEST_SRCDIR", "TEST_WORKSPACE", "RUNFILES_DIR", "A"])
def test_everything_else_is_inherited(name: str) -> None:
    """If this fails, ranks do not see a variable that a test set before they started."""
    assert made({name: "x"})[name] == "x"


def test_the_runners_own_environment_is_not_changed() -> None:
    """If this fails, the next world starts from a changed environment."""
    env = {"XML_OUTPUT_FILE": "x", "A": "1"}
    made(env)
    assert env == {"XML_OUTPUT_FILE": "x", "A": "1"}


@pytest.mark.parametrize("name", INTERFACES)
def test_loopback_is_pinned_unless_the_user_chose(name: str) -> None:
    """If this fails, a world hangs in a sandbox in which the host's name has no address."""
    assert made({})[name] == "lo"
    assert made({name: "eth7"})[name] == "eth7"


@pytest.mark.parametrize(
    "name",
    ["LIBC_FATAL_STDERR_", "TORCH_DISABLE_ADDR2LINE", "TORCH_FR_BUFFER_SIZE", "TORCH_SHOW_CPP_STACKTRACES"],
)
def test_torch_tells_what_a_report_needs_unless_the_user_chose(name: str) -> None:
    """If this fails, reports lack native stacks, the last words of a C library, or the calls of a hang."""
    assert int(made({})[name]) > 0
    assert made({name: "0"})[name] == "0"


def test_temporary_files_are_in_the_folder_of_the_world() -> None:
    """If this fails, the files of ranks outlive their case."""
    assert made({})["TMPDIR"] == made({"TMPDIR": "/mine"})["TMPDIR"] == "/t"


def test_a_lost_answer_of_dns_costs_one_second_unless_the_user_chose() -> None:
    """If this fails, a case takes 5 s longer each time that such an answer is lost: torch asks for 127.0.0.1."""
    assert "timeout:1" in made({})["RES_OPTIONS"]
    assert made({"RES_OPTIONS": "timeout:9"})["RES_OPTIONS"] == "timeout:9"


@pytest.mark.parametrize("names", [["eth0"], []])
def test_loopback_is_found_by_its_known_names(monkeypatch: pytest.MonkeyPatch, names: list[str]) -> None:
    """If this fails, ranks on macOS, where loopback has another name, get a missing interface."""
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(names, 1)))
    assert "GLOO_SOCKET_IFNAME" not in made({})


@pytest.mark.parametrize(("world_size", "threads"), [(1, 8), (2, 4), (3, 2), (8, 1), (64, 1)])
def test_ranks_share_the_cpus(world_size: int, threads: int) -> None:
    """If this fails, eight ranks with eight threads each slow down a machine of eight CPUs."""
    assert threads_per_rank(world_size, {}) == threads
    env = rank_env({}, world_size=world_size, backend_env={}, scratch=None, temp="/t")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        assert env[name] == str(threads)


@pytest.mark.parametrize(("name", "other"), [("OMP", "MKL"), ("MKL", "OMP")])
def test_one_variable_of_the_user_decides_about_all_threads(name: str, other: str) -> None:
    """If this fails, the library overrides half of the user's decision about threads."""
    env = made({f"{name}_NUM_THREADS": "3"})
    assert env[f"{name}_NUM_THREADS"] == "3"
    assert f"{other}_NUM_THREADS" not in env


def test_a_rank_gets_the_users_number_of_threads() -> None:
    """If this fails, a library that is loaded already ignores the user's number of threads."""
    assert threads_per_rank(2, {"OMP_NUM_THREADS": "3"}) == 3


@pytest.mark.parametrize("env", [{"MKL_NUM_THREADS": "3"}, {"OMP_NUM_THREADS": "4,2"}, {"OMP_NUM_THREADS": "many"}])
def test_values_that_only_the_thread_library_understands_are_left_to_it(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, the library misreads nested levels, other libraries' variables or invalid values."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert threads_per_rank(2, env) == 0


def test_the_backends_variables_are_defaults() -> None:
    """If this fails, a backend's default overrides the user's value."""
    assert made({}, NCCL_DEBUG="WARN")["NCCL_DEBUG"] == "WARN"
    assert made({"NCCL_DEBUG": "INFO"}, NCCL_DEBUG="WARN")["NCCL_DEBUG"] == "INFO"


def test_caches_are_under_the_scratch_folder() -> None:
    """If this fails, compilers write into the home folder, which a sandbox does not have."""
    env = rank_env({"TRITON_CACHE_DIR": "/mine"}, world_size=2, backend_env={}, scratch="/tmp/x", temp="/t")
    assert env["TORCHINDUCTOR_CACHE_DIR"].startswith("/tmp/x/cache/")
    assert env["TORCH_EXTENSIONS_DIR"].startswith("/tmp/x/cache/")
    assert env["TORCHINDUCTOR_CACHE_DIR"] != env["TORCH_EXTENSIONS_DIR"]
    assert env["TRITON_CACHE_DIR"] == "/mine"
    env = rank_env({}, world_size=2, backend_env={}, scratch="/tmp/x", temp="/t")
    assert env["TRITON_CACHE_DIR"] == "/tmp/x/cache/triton"


def test_a_cache_folder_that_torch_has_chosen_in_the_runner_is_not_the_users() -> None:
    """If this fails, tests share a cache outside the sandbox as soon as their file imports torch._dynamo."""
    chosen = os.path.join(tempfile.gettempdir(), "torchinductor_ada")
    names = {"TORCHINDUCTOR_CACHE_DIR": chosen}
    env = rank_env(names, world_size=2, backend_env={}, scratch="/tmp/x", temp="/t")
    assert env["TORCHINDUCTOR_CACHE_DIR"].startswith("/tmp/x/cache/")
    env = rank_env(names, world_size=2, backend_env={}, scratch=None, temp="/t")
    assert env["TORCHINDUCTOR_CACHE_DIR"] == chosen
    mine = {"TORCHINDUCTOR_CACHE_DIR": "/mine/torchinductor_ada"}
    assert mine.items() <= rank_env(mine, world_size=2, backend_env={}, scratch="/tmp/x", temp="/t").items()


def test_a_sandbox_gets_a_user_name_and_a_shell_keeps_its_own() -> None:
    """If this fails, torch fails in a sandbox, because it needs a user's name for a cache path."""
    assert rank_env({}, world_size=1, backend_env={}, scratch="/tmp/x", temp="/t")["USER"]
    assert rank_env({"USER": "ada"}, world_size=1, backend_env={}, scratch="/tmp/x", temp="/t")["USER"] == "ada"


def test_without_a_scratch_folder_caches_stay_where_they_are() -> None:
    """If this fails, a run outside Bazel loses the user's warm caches."""
    assert "TRITON_CACHE_DIR" not in made({})
    assert "USER" not in made({})


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not restrict a process to some CPUs")
def test_cpus_are_those_that_this_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a rank in a container gets threads for CPUs that it may not use."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5})
    assert cpu_count() == 2
