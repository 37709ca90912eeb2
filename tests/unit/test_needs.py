"""The hardware and software that a case needs."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from dist_testing.core.engine.needs import Lack, missing_need
from dist_testing.core.engine.report import missing_hardware
from dist_testing.core.ground.backends import Backend
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.skips import TEST_SKIPS, is_about_hardware
from dist_testing.core.ground.spec import Spec
from dist_testing.gpus.gpu import NODES_VARIABLE
from dist_testing.gpus.needs import GpuNeeds
from tests.support.gpu_nodes import make_render_node


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
    env: Mapping[str, str] = {}
    device, vendor = ("cuda", vendor) if gpus_per_rank else ("cpu", "")
    backend = Backend(
        "mine",
        torch_backend,
        device,
        gpus_per_rank=gpus_per_rank,
        vendor=vendor,
        register_module=register_module,
        env=env,
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


def test_a_cpu_world_needs_no_gpu(machine: SimpleNamespace) -> None:
    """If this fails, a CPU world is skipped on a machine without GPUs."""
    assert missing_need(spec(), 64) is None


@pytest.mark.parametrize(
    ("found", "per_rank", "world_size", "expected"),
    [
        (0, 1, 1, "Need at least 1 CUDA device (found 0)"),
        (1, 1, 2, "Need at least 2 CUDA devices (found 1)"),
        (2, 1, 2, None),
        (8, 1, 2, None),
        (3, 2, 2, "Need at least 4 CUDA devices (found 3)"),
        (8, 1, 16, "Need at least 16 CUDA devices (found 8)"),
    ],
)
def test_a_gpu_world_needs_one_for_each_rank(
    machine: SimpleNamespace, found: int, per_rank: int, world_size: int, expected: str | None
) -> None:
    """If this fails, the reason lacks how many GPUs exist or how many the world needs."""
    machine.have(found)
    machine.backends = {"nccl"}
    reason = missing_need(spec("nccl", gpus_per_rank=per_rank), world_size)
    assert reason == expected
    assert reason is None or is_about_hardware(reason)


@pytest.mark.parametrize(("ranks", "missing"), [(4, False), (5, True)])
def test_ranks_that_share_a_gpu_need_fewer_gpus(machine: SimpleNamespace, ranks: int, missing: bool) -> None:
    """If this fails, four gloo ranks that may share one GPU are skipped on a machine with one."""
    machine.have(1)
    reason = missing_need(spec(gpus_per_rank=1, ranks_per_gpu=4), ranks)
    assert reason == ("Need at least 2 CUDA devices (found 1)" if missing else None)


def test_gpus_of_another_architecture_are_a_reason(machine: SimpleNamespace) -> None:
    """A promise of GPUs makes this reason a failure, so it counts as one about hardware."""
    machine.have(1)
    machine.backends = {"nccl"}
    reason = missing_need(spec("nccl", gpus_per_rank=1, gpu_archs=("sm_90",)), 1)
    assert reason is not None
    assert "found 0; GPU 0 is of an unknown architecture, and the target needs sm_90" in reason
    assert is_about_hardware(reason)


def test_the_reason_explains_the_effect_of_the_variable(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, nvidia-smi shows eight GPUs, the log says "found 1", and nothing explains the difference."""
    machine.have(8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,9,4")
    reason = missing_need(spec(gpus_per_rank=1), 2)
    assert reason == (
        "Need at least 2 CUDA devices "
        "(found 1; CUDA_VISIBLE_DEVICES='3,9,4': '9' is no device here, and the entries after it are ignored)"
    )
    assert is_about_hardware(reason)
    text = missing_hardware("test_x", reason, promised="GPUs")
    assert text.splitlines()[-1] == "Correct CUDA_VISIBLE_DEVICES, or unset it to have every GPU of the machine."


def test_a_variable_that_names_too_few_gpus_is_reported(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, the user looks for another machine although only the variable must change."""
    machine.have(8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    reason = missing_need(spec(gpus_per_rank=1), 2)
    assert reason == "Need at least 2 CUDA devices (found 1; CUDA_VISIBLE_DEVICES names only 1 of 8)"
    assert "Let CUDA_VISIBLE_DEVICES name 2 GPU(s)" in missing_hardware("test_x", reason, promised="GPUs")


def test_the_way_out_of_a_real_lack_is_another_machine(machine: SimpleNamespace) -> None:
    """If this fails, the user is told to correct a variable that is correct."""
    machine.have(1)
    reason = missing_need(spec(gpus_per_rank=1), 2)
    assert reason is not None
    assert missing_hardware("test_x", reason, promised="GPUs").endswith(
        "Run it on a machine that has the hardware, or without the promise."
    )


def test_an_unreadable_device_folder_is_a_reason(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, an exception about a device folder ends the whole run."""
    monkeypatch.setenv(NODES_VARIABLE, str(machine.nodes / "missing"))
    reason = missing_need(spec(gpus_per_rank=1), 1)
    assert reason is not None
    assert reason.startswith("Need at least 1 CUDA device (The GPUs of this machine cannot be counted")
    assert is_about_hardware(reason)
    way_out = f"Let this user read it, or correct {NODES_VARIABLE} if that is set."
    assert way_out in reason
    text = missing_hardware("test_x", reason, promised="GPUs")
    assert text.splitlines()[-1] == way_out


def test_gpus_of_untested_vendors_are_reported_as_not_counted(machine: SimpleNamespace) -> None:
    """If this fails, NVIDIA's device nodes count as Intel's GPUs."""
    machine.have(8)
    reason = missing_need(spec(gpus_per_rank=1, vendor="intel"), 1)
    assert reason is not None
    assert "intel" in reason
    assert is_about_hardware(reason)


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
    reason = missing_need(amd, 2)
    assert reason is not None
    assert "found 1; HIP_VISIBLE_DEVICES='1,7': '7' is no device here" in reason
    assert "this has not been tried on hardware" in reason
    assert isinstance(reason, Lack)
    assert reason.way_out.startswith("Correct HIP_VISIBLE_DEVICES")


def test_a_torch_without_distributed_is_reported(machine: SimpleNamespace) -> None:
    """If this fails, a torch without distributed, such as older macOS builds, gives another error."""
    machine.has_distributed = False
    assert missing_need(spec(), 2) == TEST_SKIPS["backend_unavailable"].message


def test_a_torch_without_nccl_is_reported_in_torchs_words(machine: SimpleNamespace) -> None:
    """If this fails, users who search for torch's own message do not find it."""
    machine.have(2)
    reason = missing_need(spec("nccl", gpus_per_rank=1), 2)
    assert reason == TEST_SKIPS["nccl"].message


def test_a_torch_without_another_backend_is_reported_by_its_name(machine: SimpleNamespace) -> None:
    """If this fails, the user must guess which backend is missing."""
    reason = missing_need(spec("ucc"), 2)
    assert reason is not None
    assert reason.startswith(TEST_SKIPS["backend_unavailable"].message)
    assert "torch 2.13.0 has no ucc" in reason
    assert is_about_hardware(reason)


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
    reason = missing_need(spec("mine", register_module="no_such_backend_module"), 2)
    assert isinstance(reason, Lack)
    assert "backend mine needs module no_such_backend_module: No module named" in reason
    assert reason.way_out.startswith("Install no_such_backend_module, or add the library that holds it to the deps")
    assert reason.way_out in reason
    assert is_about_hardware(reason)


def test_a_module_that_fails_while_it_is_imported_is_an_error_of_the_declaration(
    machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A skip would hide a broken plug-in for ever."""
    (tmp_path / "broken_backend_module.py").write_text("raise ValueError('two\\nlines')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError) as caught:
        missing_need(spec("mine", register_module="broken_backend_module"), 2)
    text = str(caught.value)
    assert "its module broken_backend_module failed while it was imported: ValueError: two lines" in text
    assert len(text.splitlines()) == 3, text


def test_a_module_that_does_not_register_the_backend_is_named(machine: SimpleNamespace) -> None:
    """torch is not to blame: a plug-in that registers another name is the usual reason."""
    reason = missing_need(spec("mine", register_module="json"), 2)
    assert reason is not None
    assert "torch 2.13.0 has no mine, and module json does not register it" in reason


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
    reason = missing_need(Spec("//t", backend, (2,), "fork"), 2)
    assert reason == f"{TEST_SKIPS['no_accelerator'].message} (device npu, backend mine)"
    assert is_about_hardware(reason)
    devices["npu"] = SimpleNamespace(is_available=lambda: True, device_count=lambda: 1)
    assert missing_need(Spec("//t", backend, (2,), "fork"), 2) is None
