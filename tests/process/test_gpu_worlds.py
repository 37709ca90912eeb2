"""Worlds with simulated GPUs: their ranks compute on the CPU, and everything else is real."""

from __future__ import annotations

import ctypes
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dist_testing import World
from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.report import failure_report
from dist_testing.core.events.event import WorldEnded
from dist_testing.core.ground.backends import Backend
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.errors import LaunchError
from dist_testing.core.ground.outcomes import Cause, Status
from dist_testing.core.pytest.reports import properties
from dist_testing.gpus import memory
from dist_testing.gpus.devices import gpus_present
from dist_testing.gpus.gpu import NODES_VARIABLE, NVML_VARIABLE, Gpu, GpuError, LeaseTimeoutError
from dist_testing.gpus.lease import lease_gpus
from dist_testing.gpus.needs import GpuNeeds
from dist_testing.gpus.world_gpus import WorldGpus
from tests.support.fake_nvml import STATE_VARIABLE, build_fake_nvml
from tests.support.gpu_nodes import holder_of, make_nodes
from tests.support.worlds import engine_for, run

# A limit for tests that hang; no test asserts times. Seconds.
_LIMIT_S = 60.0


def backend(torch_backend: str = "gloo") -> Backend:
    """A backend whose ranks need a GPU each, and do not touch it."""
    return Backend(
        "fake_gpu",
        torch_backend,
        "cpu",
        gpus_per_rank=1,
        vendor="nvidia",
        timeout_s=60,
        shares_gpus=True,
        uses_nccl=torch_backend == "nccl",
    )


@pytest.fixture(autouse=True)
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Gpu, ...]:
    """Four simulated GPUs, without a management library."""
    monkeypatch.setenv(NODES_VARIABLE, str(make_nodes(tmp_path / "nodes", range(4))))
    monkeypatch.setenv(NVML_VARIABLE, "/no/such/library")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return gpus_present()


def is_free(gpus: tuple[Gpu, ...]) -> bool:
    """Whether none of them is leased."""
    try:
        lease_gpus(len(gpus), gpus, limit_s=0).release()
    except LeaseTimeoutError:
        return False
    return True


def report(world: World, body: dict[str, Any]) -> None:
    """Write down the variables of the rank."""
    Path(body["notes"], str(world.rank)).write_text(json.dumps(dict(os.environ)))


def die(world: World, body: dict[str, Any]) -> None:
    """Rank 1 is killed while the others wait for it."""
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def do_nothing(world: World, body: dict[str, Any]) -> None:
    """Pass."""


def change_gpu(world: World, body: dict[str, Any]) -> None:
    """Change the answers of the management library."""
    if world.rank == 0:
        Path(os.environ[STATE_VARIABLE]).write_text(body["state"])
    if body.get("fails"):
        raise ValueError("planted")


def fail_on_device(world: World, body: dict[str, Any]) -> None:
    """Queue work that fails after the test has ended."""

    def synchronize(device: object = None) -> None:
        raise torch.AcceleratorError(body["error"])

    torch.cuda.is_initialized = lambda: True
    torch.cuda.current_device = lambda: 0
    torch.cuda.device_count = lambda: 1
    torch.cuda.synchronize = synchronize
    # The real function refuses every index if torch has CUDA and sees no GPU.
    torch._C._cuda_hasPrimaryContext = lambda device: True  # type: ignore[attr-defined]  # torch's, with CUDA only


_FUNCTIONS = {function.__name__: function for function in (report, die, do_nothing, change_gpu, fail_on_device)}


def engine(**more: Any) -> Any:
    """An engine whose worlds have GPUs."""
    return engine_for(_FUNCTIONS, **{"backend": backend(), **more})


def _reported(worlds: Engine, folder: Path, size: int, **more: Any) -> tuple[CaseResult, list[dict[str, str]]]:
    """Run a case; also return the variables of its ranks."""
    result = run(worlds, "report", world_size=size, arguments={"notes": str(folder)}, **more)
    assert result.verdict.status is Status.PASSED, result.outcomes
    return result, [json.loads((folder / str(rank)).read_text()) for rank in range(size)]


def test_every_rank_sees_the_gpus_of_its_world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: tuple[Gpu, ...]
) -> None:
    """Ranks must not use devices of other tests."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1,2")
    with engine() as worlds:
        result, seen = _reported(worlds, tmp_path, 2)
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LOCAL_RANK")
    both = "GPU-simulated-1,GPU-simulated-3", "PCI_BUS_ID"
    assert [tuple(env[name] for name in names) for env in seen] == [(*both, "0"), (*both, "1")]
    assert dict(properties(result)) == {"world_size": 2, "gpus": "1, 3", "gpu_wait_s": result.facts["gpu_wait_s"]}
    assert is_free(pool)


def test_ranks_that_share_have_one_gpu_together(tmp_path: Path) -> None:
    """Otherwise a machine with one GPU could not test gloo on CUDA tensors."""
    with engine(settings={"gpus": GpuNeeds("fake_gpu", 1, 4)}) as worlds:
        result, seen = _reported(worlds, tmp_path, 4)
    assert result.facts["gpus"] == "0"
    assert [env["CUDA_VISIBLE_DEVICES"] for env in seen] == ["GPU-simulated-0"] * 4


def test_the_gpus_are_free_after_a_failure(pool: tuple[Gpu, ...]) -> None:
    """One crash would block the GPUs of the machine."""
    with engine() as worlds:
        result = run(worlds, "die", world_size=4)
        assert result.verdict.cause is Cause.CRASH
        assert (
            f"GPUs of the machine: 0, 1, 2, 3; gpu wait {float(result.facts['gpu_wait_s']):.1f} s."
            in failure_report(result)
        )
        assert is_free(pool)


def test_the_gpus_are_free_if_the_world_cannot_be_started(
    pool: tuple[Gpu, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next case would find them leased by its own runner, and wait for itself."""
    with engine() as worlds:
        run(worlds, "do_nothing", world_size=2)
        launcher, _ = worlds.prepare()

        def start(*_: object) -> None:
            raise LaunchError("planted")

        monkeypatch.setattr(launcher, "start", start)
        with pytest.raises(LaunchError, match="planted"):
            run(worlds, "do_nothing", world_size=2)
        assert is_free(pool)


def test_the_wait_for_gpus_is_told(pool: tuple[Gpu, ...]) -> None:
    """A report says how long a target waited for others, also if it waited in vain."""
    told: list[WorldEnded] = []
    with engine() as worlds:
        worlds.events.subscribe(told.append, WorldEnded, name="the test")
        run(worlds, "do_nothing", world_size=2)
        with lease_gpus(4, pool, limit_s=_LIMIT_S), pytest.raises(LeaseTimeoutError) as refused:
            run(worlds, "do_nothing", world_size=2, timeout_s=0.1)
    first, last = [event.record for event in told]
    assert (first.status, dict(first.properties)["gpus"]) == ("passed", "0, 1")
    assert (last.status, last.properties) == ("error", ())
    assert last.message == f"LeaseTimeoutError: {str(refused.value).splitlines()[0]}"
    assert 0 < last.duration_s < first.duration_s + 60


def test_a_worker_pool_keeps_its_gpus(pool: tuple[Gpu, ...]) -> None:
    """Its contexts and communicators stay on these devices; another test must not get them in between."""
    with engine() as worlds:
        for _ in range(2):
            result = run(worlds, "do_nothing", world_size=2, isolation="pool", pool="class")
            assert result.verdict.status is Status.PASSED
            assert result.facts["gpus"] == "0, 1"
            assert not is_free(pool[:1])
            assert not is_free(pool[1:2])
            assert is_free(pool[2:])
        assert worlds.end_pool() == ""
        assert is_free(pool)


def _lines_of(worlds: Engine, then: Callable[[], None] = lambda: None) -> list[str]:
    lines: list[str] = []

    def tell(line: str) -> None:
        lines.append(line)
        then()

    worlds.log_line = tell
    return lines


def test_a_case_waits_for_half_of_its_limit_and_names_the_holder() -> None:
    """Users kill a target that waits without a message; and a case that has waited must have time left to run."""
    with holder_of(4) as holder, engine() as worlds:
        whose = f"GPU 0, 1, 2, 3: process {holder.pid} (//other:training_nccl)"
        waits = f"dist_testing: do_nothing: waiting for 2 of 2 GPU(s); {whose}"
        lines = _lines_of(worlds)
        # Half of the limit, rounded up.
        with pytest.raises(LeaseTimeoutError, match=rf"could not be had within 2 s.*process {holder.pid}"):
            run(worlds, "do_nothing", world_size=2, timeout_s=3.0)
        assert lines == [waits]
        lines = _lines_of(worlds, holder.kill)
        result = run(worlds, "do_nothing", world_size=2, timeout_s=30.0)
        assert lines == [waits]
    assert (result.verdict.status, result.limit_s) == (Status.PASSED, 30.0)
    assert float(result.facts["gpu_wait_s"]) > 0


_GPU = "gpu 0 GPU-a 00000000:3b:00.0 100000000000 "
_FILLED = f"{_GPU} 5368709120"
_LOST = f"{_GPU} 0 lost"


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the answers of the management library about the first GPU."""
    library = build_fake_nvml(tmp_path)
    state = tmp_path / "state"
    state.write_text(f"{_GPU} 0")
    monkeypatch.setenv(NVML_VARIABLE, str(library))
    monkeypatch.setenv(STATE_VARIABLE, str(state))
    monkeypatch.setattr(memory, "_AFTER_LIMIT_S", 0.2)
    return state


def test_gpus_whose_memory_cannot_be_had_are_free(driver: Path, pool: tuple[Gpu, ...]) -> None:
    """The next case would find them leased by its own runner, and wait for itself."""
    driver.write_text(_LOST)
    with engine() as worlds:
        with pytest.raises(GpuError, match="the driver says that the GPU is lost"):
            run(worlds, "do_nothing", world_size=1)
        assert is_free(pool)


def test_the_wait_for_memory_has_what_the_wait_for_gpus_has_left(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two waits with the whole limit each would leave the case no time."""
    limits_s: list[float] = []

    def wait_for_memory(*_: object, limit_s: float, **__: object) -> dict[Gpu, memory.MemoryUse]:
        limits_s.append(limit_s)
        return {}

    monkeypatch.setattr("dist_testing.gpus.world_gpus.wait_for_memory", wait_for_memory)
    for limit_s in (_LIMIT_S, 0.0):
        WorldGpus.take(1, limit_s=limit_s, on_wait=lambda _: None).release(are_ranks_gone=True)
    first_s, second_s = limits_s
    assert 0.0 < first_s < _LIMIT_S
    assert second_s == 0.0


@pytest.mark.parametrize("are_ranks_gone", [True, False])
def test_a_world_that_is_over_closes_the_library(driver: Path, are_ranks_gone: bool) -> None:
    """A run with a thousand cases would open it, and watch for errors, a thousand times."""
    library = ctypes.CDLL(os.environ[NVML_VARIABLE])
    before = (library.fakeOpened(), library.fakeEventSets())
    gpus = WorldGpus.take(1, limit_s=_LIMIT_S, on_wait=lambda _: None)
    assert (library.fakeOpened(), library.fakeEventSets()) == (before[0] + 1, before[1] + 1)
    gpus.release(are_ranks_gone=are_ranks_gone)
    assert (library.fakeOpened(), library.fakeEventSets()) == before


def test_memory_that_a_case_leaves_behind_fails_that_case(driver: Path) -> None:
    """Otherwise the next case would fail, because it runs out of memory."""
    with engine() as worlds:
        assert run(worlds, "do_nothing", world_size=1).verdict.status is Status.PASSED
        result = run(worlds, "change_gpu", world_size=1, arguments={"state": _FILLED})
        assert (result.verdict.status, result.verdict.cause) == (Status.FAILED, Cause.RESOURCE)
        assert "GPU memory left behind: GPU 0: 5.0 GiB more than before" in failure_report(result)


def test_memory_that_a_worker_pool_leaves_behind_is_reported_when_it_ends(driver: Path, pool: tuple[Gpu, ...]) -> None:
    """The check after each case does not run for ranks that stay for a whole class."""
    with engine() as worlds:
        arguments = {"state": _FILLED}
        result = run(worlds, "change_gpu", world_size=1, isolation="pool", pool="class", arguments=arguments)
        assert result.verdict.status is Status.PASSED
        trouble = worlds.end_pool()
        assert "the ranks of the pool class did not end well: GPU memory left behind: GPU 0: 5.0 GiB more" in trouble
        assert is_free(pool)


@pytest.mark.parametrize("fails", [False, True])
def test_a_gpu_that_is_lost_during_a_case_is_the_machines_fault(
    driver: Path, pool: tuple[Gpu, ...], fails: bool
) -> None:
    """Every later case on it would fail, and this case would pass or be blamed."""
    with engine() as worlds:
        result = run(worlds, "change_gpu", world_size=1, arguments={"state": _LOST, "fails": fails})
        assert (result.verdict.status, result.verdict.cause) == (Status.FAILED, Cause.INFRASTRUCTURE)
        text = failure_report(result)
        assert "the driver says that the GPU is lost" in text
        assert "take the GPU out of CUDA_VISIBLE_DEVICES" in text
        assert ("ValueError: planted" in text) is fails
        assert is_free(pool)


@pytest.mark.parametrize(
    ("number", "fails", "cause"),
    [(79, True, Cause.INFRASTRUCTURE), (13, True, Cause.FAILURE), (79, False, Cause.NONE)],
)
@pytest.mark.parametrize("isolation", ["fork", "pool"])
def test_errors_that_the_driver_reports_excuse_a_failure(
    driver: Path, isolation: str, number: int, fails: bool, cause: Cause
) -> None:
    """In the test, a bus error appears as an unrelated exception of the next call."""
    pool = "class" if isolation == "pool" else ""
    arguments = {"state": f"{_GPU} 0\nxid 0 {number}", "fails": fails}
    with engine() as worlds:
        result = run(worlds, "change_gpu", world_size=1, isolation=isolation, pool=pool, arguments=arguments)
        assert result.verdict.cause is cause, result.verdict
        if cause is Cause.INFRASTRUCTURE:
            text = failure_report(result)
            assert "Xid 79, the GPU has fallen off the bus; rank 0 raised ValueError: planted in call" in text
        # It has been reported, and does not excuse the next case.
        result = run(worlds, "change_gpu", world_size=1, isolation=isolation, pool=pool, arguments=arguments)
        assert result.verdict.cause is (Cause.FAILURE if fails else Cause.NONE)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("CUDA error: device-side assert triggered\nCompile with `TORCH_USE_CUDA_DSA`", Cause.FAILURE),
        ("CUDA error: uncorrectable ECC error encountered\nSearch for it", Cause.INFRASTRUCTURE),
        ("CUDA error: uncorrectable ECC error encountered here", Cause.FAILURE),
    ],
)
@pytest.mark.parametrize("isolation", ["fork", "pool"])
def test_work_that_fails_on_the_device_fails_the_case_that_queued_it(isolation: str, error: str, cause: Cause) -> None:
    """CUDA reports a kernel's error at the next call, which may be in the next case, or never come."""
    pool = "class" if isolation == "pool" else ""
    with engine() as worlds:
        result = run(worlds, "fail_on_device", world_size=2, isolation=isolation, pool=pool, arguments={"error": error})
        assert result.verdict.cause is cause, result.verdict
        assert "CUDA error" in failure_report(result)
        assert run(worlds, "do_nothing", world_size=2, isolation=isolation, pool=pool).verdict.status is Status.PASSED


def test_little_shared_memory_is_reported_before_nccl_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL itself reports only "unhandled system error", on some rank, in the middle of a test."""
    statvfs = os.statvfs
    little = SimpleNamespace(f_bavail=16384, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: little if str(path) == "/dev/shm" else statvfs(path))
    for torch_backend, count in (("nccl", 1), ("gloo", 0)):
        with engine(backend=backend(torch_backend)) as worlds:
            lines = _lines_of(worlds)
            for _ in range(2):
                assert run(worlds, "do_nothing", world_size=2, init=False).verdict.status is Status.PASSED
            assert len(lines) == count
            assert all(
                line.startswith("dist_testing: do_nothing: NCCL, 2 ranks: /dev/shm has 64 MiB") for line in lines
            )


@pytest.mark.parametrize(("ranks_per_gpu", "hosts"), [(2, 4), (1, 0)])
def test_ranks_of_nccl_that_share_a_gpu_have_hosts_of_their_own(tmp_path: Path, ranks_per_gpu: int, hosts: int) -> None:
    """NCCL would report "Duplicate GPU detected", on one of them."""
    with engine(backend=backend("nccl"), settings={"gpus": GpuNeeds("fake_gpu", 1, ranks_per_gpu)}) as worlds:
        _, seen = _reported(worlds, tmp_path, 4, init=False)
    assert len({env["NCCL_HOSTID"] for env in seen if "NCCL_HOSTID" in env}) == hosts
    assert [env["NCCL_NET"] for env in seen if "NCCL_NET" in env] == ["Socket"] * hosts


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"TORCH_NCCL_BLOCKING_WAIT": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"},
        {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_FR_BUFFER_SIZE": "7"},
    ],
)
def test_how_ranks_of_nccl_wait_is_the_users_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: dict[str, str]
) -> None:
    """A suite about errors runs once with each value; a default of ours would replace the user's value."""
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    with engine(backend=backend("nccl")) as worlds:
        _, seen = _reported(worlds, tmp_path, 2, init=False)
    for env in seen:
        assert env.items() >= {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_FR_BUFFER_SIZE": "256", **chosen}.items()
        for variable in ("TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_ASYNC_ERROR_HANDLING"):
            assert env.get(variable) == chosen.get(variable)
