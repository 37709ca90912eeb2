"""The hardware and software that a case needs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from dist_testing.core.engine.needs import Lack, missing_need
from dist_testing.core.engine.report import missing_hardware
from dist_testing.core.ground.backends import Backend
from dist_testing.core.ground.skips import TEST_SKIPS, is_about_hardware
from dist_testing.core.ground.spec import Spec
from dist_testing.gpus.gpu import NODES_VARIABLE
from dist_testing.gpus.needs import GpuNeeds
from tests.support.gpu_nodes import make_render_node
from tests.support.results import refusal


def spec(
    torch_backend: str = "gloo",
    *,
    gpus_per_rank: int = 0,
    register_module: str = "",
    ranks_per_gpu: int = 1,
    vendor: str = "nvidia",
    gpu_archs: tuple[str, ...] = (),
) -> Spec:
    """Return the spec of a target for a backend with this name in torch."""
    device, vendor = ("cuda", vendor) if gpus_per_rank else ("cpu", "")
    backend = Backend(
        "mine", torch_backend, device, gpus_per_rank=gpus_per_rank, vendor=vendor, register_module=register_module
    )
    settings = {"gpus": GpuNeeds("mine", gpus_per_rank, ranks_per_gpu, gpu_archs)}
    return Spec("//t", backend, (2,), "fork", settings=settings)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """A machine without GPUs whose torch has gloo; a case can change both."""

    def have(gpus: int) -> None:
        for minor in range(gpus):
            (tmp_path / f"nvidia{minor}").touch()

    machine = SimpleNamespace(have=have, nodes=tmp_path, has_distributed=True, backends={"gloo"})
    monkeypatch.setenv(NODES_VARIABLE, str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    torch, distributed = ModuleType("torch"), ModuleType("torch.distributed")
    distributed.is_available = lambda: machine.has_distributed  # type: ignore[attr-defined]
    torch.__version__ = "2.13.0"  # type: ignore[attr-defined]
    distributed.is_backend_available = lambda name: name in machine.backends  # type: ignore[attr-defined]
    torch.distributed = distributed  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    return machine


def reason_of(wanted: Spec, world_size: int = 2) -> str:
    """Return why a world cannot run, which is a lack of hardware or of a backend."""
    reason = missing_need(wanted, world_size)
    assert reason is not None
    assert is_about_hardware(reason)
    return reason


def last_line(reason: str) -> str:
    """Return the way out of an error with this reason."""
    return missing_hardware("test_x", reason, promised="GPUs").splitlines()[-1]


_ON_GPUS = spec(gpus_per_rank=1)
_OTHER_MACHINE = "Run it on a machine that has the hardware, or without the promise."


@pytest.mark.parametrize(
    ("found", "wanted", "world_size", "expected"),
    [
        (0, spec(), 64, None),
        (0, _ON_GPUS, 1, "Need at least 1 CUDA device (found 0)"),
        (1, _ON_GPUS, 2, "Need at least 2 CUDA devices (found 1)"),
        (2, _ON_GPUS, 2, None),
        (8, _ON_GPUS, 2, None),
        (3, spec(gpus_per_rank=2), 2, "Need at least 4 CUDA devices (found 3)"),
        (8, _ON_GPUS, 16, "Need at least 16 CUDA devices (found 8)"),
        # Ranks that may share one.
        (1, spec(gpus_per_rank=1, ranks_per_gpu=4), 4, None),
        (1, spec(gpus_per_rank=1, ranks_per_gpu=4), 5, "Need at least 2 CUDA devices (found 1)"),
    ],
)
def test_a_gpu_world_needs_one_for_each_rank(
    machine: SimpleNamespace, found: int, wanted: Spec, world_size: int, expected: str | None
) -> None:
    """If this fails, the reason lacks how many GPUs exist or how many the world needs."""
    machine.have(found)
    assert missing_need(wanted, world_size) == expected
    if expected is not None:
        assert last_line(reason_of(wanted, world_size)) == _OTHER_MACHINE


@pytest.mark.parametrize(
    ("visible", "said", "way_out"),
    [
        (
            "3,9,4",
            "CUDA_VISIBLE_DEVICES='3,9,4': '9' is no device here, and the entries after it are ignored",
            "Correct CUDA_VISIBLE_DEVICES, or unset it to have every GPU of the machine.",
        ),
        ("3", "CUDA_VISIBLE_DEVICES names only 1 of 8", "Let CUDA_VISIBLE_DEVICES name 2 GPU(s)"),
    ],
)
def test_the_reason_explains_the_effect_of_the_variable(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, visible: str, said: str, way_out: str
) -> None:
    """If this fails, nvidia-smi shows eight GPUs, the log says "found 1", and nothing explains the difference."""
    machine.have(8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    reason = reason_of(_ON_GPUS)
    assert reason == f"Need at least 2 CUDA devices (found 1; {said})"
    assert last_line(reason).startswith(way_out)


def test_gpus_that_cannot_be_counted_are_a_reason(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, an exception about a device folder ends the whole run."""
    monkeypatch.setenv(NODES_VARIABLE, str(machine.nodes / "missing"))
    reason = reason_of(_ON_GPUS, 1)
    assert reason.startswith("Need at least 1 CUDA device (The GPUs of this machine cannot be counted")
    way_out = f"Let this user read it, or correct {NODES_VARIABLE} if that is set."
    assert way_out in reason
    assert last_line(reason) == way_out


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        # A promise of GPUs makes this a failure.
        (
            spec(gpus_per_rank=1, gpu_archs=("sm_90",)),
            "GPU 1 is of an unknown architecture, and the target needs sm_90",
        ),
        # NVIDIA's nodes do not count as those of a vendor that has not been tried.
        (spec(gpus_per_rank=1, vendor="intel"), "intel"),
        # Users search for torch's own message.
        (spec("nccl", gpus_per_rank=1), TEST_SKIPS["nccl"].message),
        (spec("ucc"), f"{TEST_SKIPS['backend_unavailable'].message} (torch 2.13.0 has no ucc"),
        # torch is not to blame: a plug-in that registers another name is the usual reason.
        (spec("mine", register_module="json"), "torch 2.13.0 has no mine, and module json does not register it"),
    ],
)
def test_what_this_machine_lacks_is_named(machine: SimpleNamespace, wanted: Spec, said: str) -> None:
    """If this fails, the user must guess what is missing."""
    machine.have(2)
    assert said in reason_of(wanted, 1)
    machine.has_distributed = False
    assert missing_need(spec(), 2) == TEST_SKIPS["backend_unavailable"].message


def test_amd_gpus_are_counted_by_their_own_nodes_and_variable(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, a backend for AMD's GPUs counts NVIDIA's GPUs on the same machine."""
    machine.have(8)
    machine.backends = {"nccl"}
    for minor in (128, 129):
        make_render_node(machine.nodes, minor)
    amd = spec("nccl", gpus_per_rank=1, vendor="amd")
    assert missing_need(amd, 2) is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert missing_need(amd, 2) is None
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1,7")
    reason = reason_of(amd)
    assert "found 1; HIP_VISIBLE_DEVICES='1,7': '7' is no device here" in reason
    assert "this has not been tried on hardware" in reason
    assert isinstance(reason, Lack)
    assert reason.way_out.startswith("Correct HIP_VISIBLE_DEVICES")


def test_a_backend_that_registers_itself_is_imported_first(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, a backend whose module registers it is skipped, because torch does not know it yet."""

    def import_module(name: str) -> None:
        assert name == "my.backend"
        machine.backends.add("mine")

    monkeypatch.setattr("importlib.import_module", import_module)
    assert missing_need(spec("mine", register_module="my.backend"), 2) is None
    assert missing_need(spec("other"), 2) is not None


def test_a_backend_whose_module_is_missing_is_told_without_a_traceback(machine: SimpleNamespace) -> None:
    """An exception here ends the whole run, and the cases after this one with it."""
    reason = reason_of(spec("mine", register_module="no_such_backend_module"))
    assert isinstance(reason, Lack)
    assert "backend mine needs module no_such_backend_module: No module named" in reason
    assert reason.way_out.startswith("Install no_such_backend_module, or add the library that holds it to the deps")
    assert reason.way_out in reason


def test_a_module_that_fails_while_it_is_imported_is_an_error_of_the_declaration(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A skip would hide a broken plug-in for ever."""
    (tmp_path / "broken_backend_module.py").write_text("raise ValueError('two\\nlines')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    text = refusal(lambda: missing_need(spec("mine", register_module="broken_backend_module"), 2))
    assert "its module broken_backend_module failed while it was imported: ValueError: two lines" in text


@pytest.mark.parametrize(
    ("has", "expected"),
    [
        ({"gloo", "nccl"}, None),
        ({"nccl"}, "torch 2.13.0 has no gloo"),
        ({"gloo"}, TEST_SKIPS["nccl"].message),
    ],
)
def test_every_part_of_a_mixed_backend_must_be_there(
    machine: SimpleNamespace, has: set[str], expected: str | None
) -> None:
    """torch itself would fail on the ranks, and say something else for each part."""
    machine.have(2)
    machine.backends = has
    reason = missing_need(spec("cpu:gloo,cuda:nccl", gpus_per_rank=1), 2)
    assert (reason is None) if expected is None else (reason is not None and expected in reason)


def test_a_device_that_torch_does_not_have_is_a_reason(machine: SimpleNamespace) -> None:
    """A plug-in's accelerator is not counted before, so torch must be asked."""
    devices: dict[str, SimpleNamespace] = {}

    def device_module(name: str) -> SimpleNamespace:
        if name not in devices:
            raise RuntimeError(f"Invalid device string '{name}'")
        return devices[name]

    sys.modules["torch"].get_device_module = device_module  # type: ignore[attr-defined]
    backend = Backend("mine", "gloo", "npu", register_module="json")
    reason = reason_of(Spec("//t", backend, (2,), "fork"))
    assert reason == f"{TEST_SKIPS['no_accelerator'].message} (device npu, backend mine)"
    devices["npu"] = SimpleNamespace(is_available=lambda: True, device_count=lambda: 1)
    assert missing_need(Spec("//t", backend, (2,), "fork"), 2) is None
