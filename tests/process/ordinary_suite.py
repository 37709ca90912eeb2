"""Ordinary tests with what pytest, Python and torch offer; test_ordinary.py runs them on every isolation."""

from __future__ import annotations

import asyncio
import json
import logging.config
import multiprocessing
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch._dynamo  # otherwise each rank imports it again
import torch.distributed as dist
from torch import nn
from torch.distributed import FileStore, rpc  # type: ignore[attr-defined]  # not in torch's stubs
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import dist_testing

ranks = pytest.mark.distributed(world_size=2)
_log = logging.getLogger("project")


def total(value: float) -> float:
    """Add a number over all ranks."""
    tensor = torch.tensor(float(value))
    dist.all_reduce(tensor)
    return tensor.item()


# Fixtures


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("data")
    (folder / "numbers.json").write_text("[1, 2]")
    yield folder
    (folder / "numbers.json").unlink()


@pytest.fixture(scope="package")
def numbers(data_folder: Path) -> list[int]:
    return list(json.loads((data_folder / "numbers.json").read_text()))


@pytest.fixture(scope="module")
def model(numbers: list[int]) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(len(numbers), 1)


@pytest.fixture(scope="class")
def events() -> list[str]:
    return []


@pytest.fixture(autouse=True)
def each(request: pytest.FixtureRequest) -> Iterator[None]:
    request.node.was_seen = True
    yield
    assert not threading.current_thread().name.startswith("user")


@pytest.fixture(params=[2, 3], ids=["two", "three"])
def factor(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def shape(request: pytest.FixtureRequest) -> torch.Tensor:
    return torch.ones(request.param)


@pytest.fixture
def pair(world: dist_testing.World) -> Iterator[dist.ProcessGroup]:
    group = dist.new_group(ranks=[0, 1])
    assert isinstance(group, dist.ProcessGroup)
    yield group
    dist.barrier(group)
    dist.destroy_process_group(group)


@pytest.fixture
def mesh(world: dist_testing.World) -> DeviceMesh:
    return init_device_mesh("cpu", (world.size,), mesh_dim_names=("data",))


@dataclass(frozen=True)
class Layer:
    inputs: int
    outputs: int = 1


@ranks
class TestFixtures:
    def test_scopes(self, model: nn.Linear, numbers: list[int], request: pytest.FixtureRequest) -> None:
        assert model(torch.tensor(numbers, dtype=torch.float32)).shape == (1,)
        assert request.node.was_seen

    def test_fixture_with_params(self, factor: int) -> None:
        assert total(factor) == 2 * factor

    @pytest.mark.parametrize("shape", [(2, 3), (4,)], indirect=True)
    def test_indirect(self, shape: torch.Tensor) -> None:
        dist.all_reduce(shape)
        assert (shape == 2).all()

    def test_group_of_a_fixture(self, pair: dist.ProcessGroup) -> None:
        assert dist.get_world_size(pair) == 2

    @pytest.mark.usefixtures("pair")
    def test_usefixtures(self, world: dist_testing.World) -> None:
        assert total(world.rank) == 1

    def test_request(self, request: pytest.FixtureRequest) -> None:
        assert request.getfixturevalue("world").size == 2
        request.addfinalizer(dist.barrier)
        assert request.node.name == "test_request"
        assert request.config.getoption("verbose") >= -1  # as in the runner

    def test_tmp_path(self, tmp_path: Path, world: dist_testing.World) -> None:
        (tmp_path / "file").write_text(str(world.rank))
        dist.barrier()
        assert (tmp_path / "file").read_text() == str(world.rank)

    def test_shared_folder(self, world: dist_testing.World) -> None:
        (world.tmp_path / str(world.rank)).touch()
        dist.barrier()
        assert {path.name for path in world.tmp_path.iterdir()} >= {"0", "1"}

    def test_monkeypatch(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PROJECT", "1")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(_log, "name", "patched")
        assert os.environ["PROJECT"] == "1"
        assert Path.cwd() == tmp_path

    def test_caplog(self, caplog: pytest.LogCaptureFixture, world: dist_testing.World) -> None:
        with caplog.at_level(logging.INFO, logger="project"):
            _log.info("rank %d", world.rank)
        assert caplog.record_tuples == [("project", logging.INFO, f"rank {world.rank}")]

    def test_capsys(self, capsys: pytest.CaptureFixture[str], world: dist_testing.World) -> None:
        print("rank", world.rank)
        assert capsys.readouterr().out == f"rank {world.rank}\n"

    def test_capfd(self, capfd: pytest.CaptureFixture[str]) -> None:
        os.write(2, b"native")
        assert capfd.readouterr().err == "native"

    def test_recwarn(self, recwarn: pytest.WarningsRecorder) -> None:
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        assert str(recwarn.pop(DeprecationWarning).message) == "old"


@ranks
class TestMarks:
    @pytest.mark.parametrize("layer", [Layer(2), Layer(3, 2)], ids=str)
    @pytest.mark.parametrize("bias", [True, False])
    def test_parametrize(self, layer: Layer, bias: bool) -> None:
        made = nn.Linear(layer.inputs, layer.outputs, bias=bias)
        dist.broadcast(made.weight.data, src=0)
        assert made(torch.ones(layer.inputs)).shape == (layer.outputs,)

    @pytest.mark.filterwarnings("error:careful")
    def test_filterwarnings(self) -> None:
        with pytest.raises(UserWarning):
            warnings.warn("careful", stacklevel=1)

    @pytest.mark.xfail(raises=ZeroDivisionError, strict=True)
    def test_xfail(self, world: dist_testing.World) -> None:
        assert 1 / (world.rank - world.rank)


@ranks
class TestPython:
    def test_asyncio(self, world: dist_testing.World) -> None:
        async def add() -> float:
            return await asyncio.to_thread(total, world.rank)

        assert asyncio.run(add()) == 1

    def test_subprocess(self, world: dist_testing.World) -> None:
        command = [sys.executable, "-c", "import os; print(os.environ.get('RANK'))"]
        said = subprocess.run(command, capture_output=True, text=True, check=True, env={"RANK": str(world.rank)})
        assert said.stdout == f"{world.rank}\n"

    def test_environment(self, world: dist_testing.World) -> None:
        assert os.environ["RANK"] == str(world.rank)

    def test_logging_configuration(self, tmp_path: Path) -> None:
        handler = {"class": "logging.FileHandler", "filename": tmp_path / "log"}
        logger = {"handlers": ["file"], "level": "INFO"}
        logging.config.dictConfig({"version": 1, "handlers": {"file": handler}, "loggers": {"project.file": logger}})
        logging.getLogger("project.file").info("said")
        assert (tmp_path / "log").read_text() == "said\n"
        logging.getLogger("project.file").handlers.pop().close()

    def test_threads(self, world: dist_testing.World) -> None:
        sums: list[float] = []
        thread = threading.Thread(target=lambda: sums.append(total(world.rank)), name="user")
        thread.start()
        thread.join()
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(abs, [-1, 2])) == [1, 2]
        assert sums == [1]

    def test_multiprocessing_pool(self) -> None:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(abs, [-1, 2]) == [1, 2]
            pool.close()
            pool.join()


@ranks
class TestTorch:
    def test_data_loader(self, world: dist_testing.World) -> None:
        data = TensorDataset(torch.arange(8.0))
        loader = DataLoader(data, batch_size=2, num_workers=2, sampler=DistributedSampler(data))
        assert total(sum(batch.sum().item() for (batch,) in loader)) == sum(range(8))

    def test_ddp(self, model: nn.Linear, world: dist_testing.World) -> None:
        parallel = DistributedDataParallel(model)
        parallel(torch.full((4, 2), float(world.rank))).sum().backward()
        assert model.weight.grad is not None
        assert model.weight.grad.flatten().tolist() == [2, 2]

    def test_fully_shard(self, mesh: DeviceMesh) -> None:
        layer = nn.Linear(4, 4)
        fully_shard(layer, mesh=mesh)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        layer(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        assert all(isinstance(parameter, DTensor) for parameter in layer.parameters())

    def test_dtensor(self, mesh: DeviceMesh) -> None:
        tensor = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
        assert tensor.to_local().numel() == 2
        assert tensor.redistribute(placements=[Replicate()]).to_local().tolist() == [0, 1, 2, 3]

    def test_checkpoint(self, world: dist_testing.World) -> None:
        saved = {"weight": torch.arange(1.0, 5.0)}
        save(saved, checkpoint_id=world.tmp_path / "checkpoint")
        loaded = {"weight": torch.zeros(4)}
        load(loaded, checkpoint_id=world.tmp_path / "checkpoint")
        assert torch.equal(loaded["weight"], saved["weight"])

    def test_compile(self, world: dist_testing.World) -> None:
        @torch.compile(backend="aot_eager")
        def twice(tensor: torch.Tensor) -> torch.Tensor:
            return tensor * 2

        assert total(twice(torch.tensor(1.0)).item()) == 4


@ranks
class TestClass:
    made: str

    @classmethod
    def setup_class(cls) -> None:
        cls.made = "class"

    def setup_method(self) -> None:
        self.value = 1

    def teardown_method(self) -> None:
        dist.barrier()

    def test_method(self, events: list[str]) -> None:
        events.append(self.made)
        assert total(self.value) == 2

    @pytest.mark.parametrize("factor", [5], indirect=True)
    def test_parameter(self, factor: int, events: list[str]) -> None:
        assert (factor, events) == (5, [])


class TestOfUnittest(dist_testing.MultiProcessTestCase):
    world_size = 2

    def test_subtests(self) -> None:
        store = FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        for value in (1, 2):
            with self.subTest(value=value):
                self.assertEqual(total(value), 2 * value)


@pytest.mark.distributed(world_size=2, init=False)
class TestRpc:
    def test_rpc(self, world: dist_testing.World) -> None:
        rpc.init_rpc(f"worker{world.rank}", rank=world.rank, world_size=world.size)  # type: ignore[no-untyped-call]
        assert rpc.rpc_sync(f"worker{1 - world.rank}", max, args=(1, 2)) == 2
        rpc.shutdown()
