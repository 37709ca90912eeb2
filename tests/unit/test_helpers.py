"""Helpers for test authors: stores, limits, environments, inputs."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import unittest
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed

import dist_testing
from dist_testing.compat.helpers import environment
from dist_testing.compat.helpers.running import retrieve_result_from_completion_queue
from tests.support.results import refusal

# Many public functions are missing in its `__all__`.
dist: Any = torch.distributed


@pytest.fixture
def group_of_one() -> Iterator[None]:
    """A default group with one rank."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def test_a_tcp_store_has_its_own_port() -> None:
    """If this fails, two stores share a port, or the port is not the server's from the start."""
    first, second = dist_testing.create_tcp_store(), dist_testing.create_tcp_store(timeout=timedelta(seconds=7))
    assert first.port != second.port
    assert second.timeout == timedelta(seconds=7)  # type: ignore[attr-defined]  # not in torch's stubs
    client = dist.TCPStore("localhost", first.port, 1, False)
    first.set("key", "value")
    assert client.get("key") == b"value"
    assert not second.check(["key"])


@pytest.mark.parametrize("options", [{}, {"use_libuv": False}, {"wait_for_workers": False}])
def test_a_tcp_store_listens_on_loopback_only(options: dict[str, Any]) -> None:
    """If this fails, every machine in the network can write into the store, or a kind that suites ask for is broken."""
    store: Any = dist_testing.create_tcp_store(**options)
    store.set("key", "value")
    assert bytes(store.get("key")) == b"value"
    listening = [
        line.split()[1]
        for name in ("tcp", "tcp6")
        for line in Path("/proc/self/net", name).read_text(encoding="ascii").splitlines()[1:]
        if line.split()[1].endswith(f":{store.port:04X}") and line.split()[3] == "0A"
    ]
    assert listening == [f"0100007F:{store.port:04X}"]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"is_master": False}, "no port to connect to"), ({"jit_class": True}, "no TorchScript class")],
)
def test_impossible_tcp_stores_are_refused(options: dict[str, Any], message: str) -> None:
    """If this fails, a client waits five minutes for a server that cannot exist."""
    assert message in refusal(lambda: dist_testing.create_tcp_store(**options))


@pytest.mark.parametrize("options", [{}, {"interface": "lo"}, {"lazy_init": True}])
def test_gloo_devices_are_created(options: dict[str, Any]) -> None:
    """If this fails, suites have no device for the options of a gloo group."""
    assert isinstance(dist_testing.create_device(**options), dist.ProcessGroupGloo.Device)


def test_a_limit_can_be_set_for_a_method_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a test that needs a longer limit is stopped as hung."""
    assert dist_testing.get_timeout("__main__.Case.test_ddp_uneven_inputs") == 400
    assert dist_testing.get_timeout("__main__.Case.test_other") == environment.default_timeout()
    monkeypatch.setitem(environment.TIMEOUT_OVERRIDE, "test_other", 7)
    assert dist_testing.get_timeout("__main__.Case.test_other") == 7


_DEFAULT = "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"


def test_the_default_limit_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """CI lanes set it. A wrong value is no traceback of int(), and a limit of 0 would stop every test at once."""
    monkeypatch.delenv(_DEFAULT, raising=False)
    assert environment.default_timeout() == 300
    monkeypatch.setenv(_DEFAULT, "20")
    assert environment.default_timeout() == 20
    for value in ("", "0", "-1", "1.5", "five", "²"):
        monkeypatch.setenv(_DEFAULT, value)
        assert f"{_DEFAULT} = {value!r}; expected a number of seconds" in refusal(environment.default_timeout)
        # A test with a limit of its own does not read it.
        assert environment.get_timeout("__main__.Case.test_ddp_uneven_inputs") == 400
    monkeypatch.setenv("PYTORCH_TEST_WITH_TSAN", "1")
    assert environment.default_timeout() == 500


def test_temporary_folders_are_created_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, processes that a test starts itself do not find each other, or folders remain."""
    for name in ("TEMP_DIR", "INIT_METHOD"):
        monkeypatch.setenv(name, "")
    dist_testing.initialize_temp_directories()
    folder = Path(os.environ["TEMP_DIR"])
    assert {path.name for path in folder.iterdir()} == {"barrier", "init_dir", "test_dir"}
    assert os.environ["INIT_METHOD"] == f"file://{folder}/init_dir/shared_init_file"
    dist_testing.initialize_temp_directories("tcp://localhost:0")
    second = Path(os.environ["TEMP_DIR"])
    assert os.environ["INIT_METHOD"] == "tcp://localhost:0"
    dist_testing.cleanup_temp_dir()
    assert not folder.exists()
    assert not second.exists()
    dist_testing.cleanup_temp_dir()


def test_nccl_waits_are_blocking_for_one_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, the variable stays set and changes every later test.

    torch's decorator leaves a variable set that was not set before.
    """
    monkeypatch.delenv("TORCH_NCCL_BLOCKING_WAIT", raising=False)
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")

    @dist_testing.with_nccl_blocking_wait
    def body() -> None:
        assert os.environ["TORCH_NCCL_BLOCKING_WAIT"] == "1"
        assert "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in os.environ
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        body()
    assert "TORCH_NCCL_BLOCKING_WAIT" not in os.environ
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"


def test_core_files_are_off_in_a_block_only() -> None:
    """If this fails, a fault of a GPU ends the rank on ROCm, or a later crash leaves no core file."""

    @dist_testing.core_dumps_disabled()
    def body() -> None:
        assert resource.getrlimit(resource.RLIMIT_CORE) == (0, allowed[1])
        raise ValueError("boom")

    before = resource.getrlimit(resource.RLIMIT_CORE)
    # As much as this process may have: nothing, where the hard limit is 0.
    allowed = (before[1], before[1])
    resource.setrlimit(resource.RLIMIT_CORE, allowed)
    try:
        with pytest.raises(ValueError, match="boom"):
            body()
        assert resource.getrlimit(resource.RLIMIT_CORE) == allowed
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("fails", [False, True])
def test_each_debug_level_is_run_and_then_restored(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a test that fails at one level leaves that level to the next test."""
    monkeypatch.delenv("TORCH_DISTRIBUTED_DEBUG", raising=False)
    seen = []

    @dist_testing.with_dist_debug_levels(["INFO", "DETAIL"])
    def body() -> str:
        seen.append((os.environ["TORCH_DISTRIBUTED_DEBUG"], dist.get_debug_level()))
        if fails:
            raise ValueError("boom")
        return "last"

    if fails:
        with pytest.raises(ValueError, match="boom"):
            body()
    else:
        assert body() == "last"
    expected = [("INFO", dist.DebugLevel.INFO), ("DETAIL", dist.DebugLevel.DETAIL)]
    assert seen == expected[: 1 if fails else 2]
    assert "TORCH_DISTRIBUTED_DEBUG" not in os.environ
    assert dist.get_debug_level() == dist.DebugLevel.OFF


def test_output_is_captured_and_backends_have_tables() -> None:
    """Tests of what is printed compare it. Suites read the tables for the backend of the lane."""
    with dist_testing.captured_output() as (out, err):
        print("one")
        print("two", file=sys.stderr)
    assert (out.getvalue(), err.getvalue()) == ("one\n", "two\n")
    assert "nccl" in dist_testing.DistTestCases.skip_collective["sendrecv anysource"]
    assert "gloo" in dist_testing.DistTestCases.backend_feature["subgroup"]


@pytest.mark.parametrize("num_inputs", [1, 2])
def test_sparse_sums_equal_the_added_inputs(num_inputs: int) -> None:
    """If this fails, a wrong expectation lets a wrong reduction pass."""
    world_size = 3
    per_rank = [dist_testing.simple_sparse_reduce_tests(rank, world_size, num_inputs) for rank in range(world_size)]
    assert len(per_rank[0]) == 6
    dense_and_sparse = set()
    for case in range(6):
        inputs = [tensor.to_dense() for rank in per_rank for tensor in rank[case][0]]
        assert len(inputs) == world_size * num_inputs
        assert [bool(tensor.any()) for tensor in inputs] == [True] * len(inputs)
        total = torch.stack(inputs).sum(0)
        for rank in per_rank:
            assert [torch.equal(tensor.to_dense(), total) for tensor in rank[case][1]] == [True] * num_inputs
        tensor = per_rank[0][case][0][0]
        dense_and_sparse.add((tensor.sparse_dim(), tensor.dense_dim()))
    assert dense_and_sparse == {(1, 0), (2, 0), (3, 0), (1, 1), (1, 2), (1, 3)}


@pytest.mark.usefixtures("group_of_one")
def test_subtests_run_for_every_combination(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a combination is not tested, or the ranks mix up the messages of two combinations."""
    calls: list[Any] = []
    monkeypatch.setattr(dist, "barrier", lambda: calls.append("barrier"))

    class Case(unittest.TestCase):
        def test(self) -> None:
            dist_testing.run_subtests(self, {"a": [1, 2], "b": ["x"]}, self.body, 0, more=True)

        def body(self, first: int, *, more: bool, a: int, b: str) -> None:
            calls.append((first, more, a, b))
            if a == 1:
                raise ValueError("boom")

    result = unittest.TestResult()
    Case("test").run(result)
    assert calls == [(0, True, 1, "x"), "barrier", (0, True, 2, "x"), "barrier"]
    assert [str(test).partition("(a")[2] for test, _ in result.errors] == ["=1, b='x')"]


def test_an_error_that_ddp_did_not_log_is_detected() -> None:
    """If this fails, the check passes whatever DDP logs, or never, because stacks differ from run to run."""
    logged: dict[str, Any] = {"iteration": 1}
    model: Any = SimpleNamespace(_get_ddp_logging_data=lambda: logged)
    with pytest.raises(AssertionError, match="no has_error, error"):
        dist_testing.verify_ddp_error_logged(model, "boom")
    logged |= {"has_error": 1, "error": "other"}
    with pytest.raises(AssertionError, match="another error than 'boom': other"):
        dist_testing.verify_ddp_error_logged(model, "boom")
    logged |= {"error": "x boom y"}
    dist_testing.verify_ddp_error_logged(model, "boom\nException raised from somewhere")


# No program, one that the system cannot run, and one that finds it.
@pytest.mark.parametrize(
    ("program", "has_efa"),
    [("", False), ("not a program", False), ("#!/bin/sh\necho provider: efa\necho fabric >&2\nexit 0\n", True)],
)
def test_efa_is_found_by_its_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str], program: str, has_efa: bool
) -> None:
    """Most machines have neither. TensorPipe takes EFA for InfiniBand, and fails."""
    if program:
        (tmp_path / "fi_info").write_text(program, encoding="ascii")
        (tmp_path / "fi_info").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    environment.has_efa.cache_clear()
    assert dist_testing.has_efa() is has_efa
    assert dist_testing.tp_transports() == (["shm", "uv"] if has_efa else None)
    assert capfd.readouterr() == ("", "")
    environment.has_efa.cache_clear()


@pytest.mark.parametrize("cast", [False, True])
def test_models_keep_their_inputs(cast: bool) -> None:
    """If this fails, tests of mixed precision see the wrong input types."""
    inputs: dict[torch.nn.Module, torch.Tensor] = {}
    model = dist_testing.SaveForwardInputsModel(inputs, cast_forward_inputs=cast)
    given = torch.ones(1, 100, dtype=torch.float64 if cast else torch.float32)
    output = model(given)
    assert list(inputs) == [model, model.c1, model.c2]
    assert inputs[model] is inputs[model.c1] is given
    assert output.dtype is torch.float32


def _pass_on(orders: Any, results: Any) -> None:
    results.put(orders.get())


def test_results_come_from_the_queue_of_a_process() -> None:
    """If this fails, the result of a process that ends at once is lost, or a late one raises, unlike in torch."""
    context = multiprocessing.get_context("spawn")
    orders, results = context.Queue(), context.Queue()
    process = context.Process(target=_pass_on, args=(orders, results))
    process.start()
    late = retrieve_result_from_completion_queue(process, results, timeout=0.01)
    assert isinstance(late, RuntimeError)
    assert str(late).startswith("Process timed out after 0.")
    orders.put(7)
    assert retrieve_result_from_completion_queue(process, results, timeout=60) == 7
    process.join()
    ended = retrieve_result_from_completion_queue(process, results, timeout=60)
    assert isinstance(ended, RuntimeError)
    assert str(ended) == "Exited with 0"
    process.close()
