"""Requirements of tests: decided in the runner where possible, with the same result on the rank."""

from __future__ import annotations

import functools
import sys
import unittest
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

import dist_testing
from dist_testing.compat.requirements import accelerators
from dist_testing.compat.requirements.accelerators import check_count, skip_below_world_size
from dist_testing.compat.requirements.requirement import requirement
from dist_testing.core.ground.skips import TEST_SKIPS, unmet_requirement
from tests.support.results import refusal


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine whose number of CUDA devices, `cuda`, the case sets."""
    machine = SimpleNamespace(cuda=0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: machine.cuda)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 0)
    monkeypatch.delenv("BACKEND", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return machine


def body() -> str:
    """A test without errors."""
    return "ran"


def reason_on_rank(function: Callable[..., Any]) -> str | None:
    """Return why a function skips when it is called; None if it runs."""
    try:
        assert function() == "ran"
    except unittest.SkipTest as skip:
        return str(skip)
    return None


# Decorator, WORLD_SIZE, GPUs, expected reason.
CASES: list[tuple[Callable[[Any], Any], str, int, str | None]] = [
    (dist_testing.skip_if_lt_x_gpu(2), "", 0, "Need at least 2 CUDA devices"),
    (dist_testing.skip_if_lt_x_gpu(2), "", 1, "Need at least 2 CUDA devices"),
    (dist_testing.skip_if_lt_x_gpu(2), "", 2, None),
    (dist_testing.skip_if_lt_x_gpu(9), "", 8, "Need at least 9 CUDA devices"),
    (dist_testing.skip_if_lt_x_gpu(9), "", 9, None),
    (dist_testing.skip_if_lt_x_gpu(2, allow_cpu=True), "", 0, None),
    (dist_testing.skip_if_lt_x_gpu(2, allow_cpu=True), "", 1, "Need at least 2 CUDA devices"),
    (dist_testing.nccl_skip_if_lt_x_gpu("nccl", 1), "", 0, "Need at least 1 CUDA device"),
    (dist_testing.nccl_skip_if_lt_x_gpu("nccl", 1), "", 1, None),
    (dist_testing.nccl_skip_if_lt_x_gpu("gloo", 1), "", 0, None),
    (dist_testing.require_n_gpus_for_nccl_backend(12, "nccl"), "", 8, "Need at least 12 CUDA devices"),
    (dist_testing.require_n_gpus_for_nccl_backend(12, "gloo"), "", 8, None),
    (dist_testing.skip_if_no_gpu, "2", 0, "CUDA is not available."),
    (dist_testing.skip_if_no_gpu, "2", 1, "Need at least 2 CUDA devices"),
    (dist_testing.skip_if_no_gpu, "2", 2, None),
    (dist_testing.skip_if_no_gpu, "", 1, None),
    (dist_testing.skip_if_small_worldsize, "2", 0, "Skipped due to small world size."),
    (dist_testing.skip_if_small_worldsize, "3", 0, None),
    (skip_below_world_size(8), "7", 0, "Skipped due to small world size."),
    (skip_below_world_size(8), "8", 0, None),
    (dist_testing.skip_if_odd_worldsize, "3", 0, "Skipped due to odd world size."),
    (dist_testing.skip_if_odd_worldsize, "4", 0, None),
    (dist_testing.skip_if_odd_worldsize, "", 0, None),
]


@pytest.mark.parametrize(("decorator", "world_size", "gpus", "reason"), CASES)
def test_the_runner_and_the_rank_decide_alike(
    decorator: Callable[[Any], Any],
    world_size: str,
    gpus: int,
    reason: str | None,
    machine: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If this fails, ranks start for a test that skips on all of them, or a test that can run does not."""
    machine.cuda = gpus
    environment = {"WORLD_SIZE": world_size} if world_size else {}
    decorated = decorator(body)
    assert unmet_requirement(decorated, environment) == reason
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert reason_on_rank(decorated) == reason


def test_where_the_world_size_comes_from(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a world whose size mpirun's user chose is skipped, or a thread rank gets a KeyError."""
    for decorator in (dist_testing.skip_if_small_worldsize, dist_testing.skip_if_odd_worldsize):
        assert unmet_requirement(decorator(body), {"WORLD_SIZE": "1", "BACKEND": "mpi"}) is None
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    assert reason_on_rank(dist_testing.skip_if_odd_worldsize(body)) == TEST_SKIPS["odd_worldsize"].message


def test_stacked_decorators_are_checked_from_the_outside_in(machine: SimpleNamespace) -> None:
    """If this fails, the runner and the rank give different reasons, or a foreign decorator in between hides them."""
    machine.cuda = 2
    needing_eight: Any = dist_testing.skip_if_lt_x_gpu(8)(body)
    # Reports and `skip_return_code_checks` look for both.
    assert (needing_eight.__name__, needing_eight.__wrapped__) == ("body", body)

    @functools.wraps(needing_eight)
    def foreign() -> Any:
        return needing_eight()

    assert unmet_requirement(foreign, {}) == "Need at least 8 CUDA devices"
    decorated = dist_testing.skip_if_lt_x_gpu(2)(dist_testing.skip_if_lt_x_gpu(4)(foreign))
    assert unmet_requirement(decorated, {}) == "Need at least 4 CUDA devices"
    assert reason_on_rank(decorated) == "Need at least 4 CUDA devices"


def test_a_unittest_skip_mark_is_known_before_the_test_runs() -> None:
    """If this fails, all ranks start only to raise the skip: pytest ignores unittest's mark on a function."""
    assert unmet_requirement(unittest.skip("not today")(body), {}) == "not today"
    assert unmet_requirement(unittest.skipIf(False, "never")(body), {}) is None


def test_an_instance_may_handle_the_skip_itself(machine: SimpleNamespace) -> None:
    """If this fails, torch's simulated worlds in one process, which continue after a skip, stop."""

    class Case:
        handled = ""

        def _handle_test_skip(self, reason: str) -> None:
            self.handled = reason

        @dist_testing.skip_if_lt_x_gpu(2)
        def test(self) -> str:
            return "ran"

    case = Case()
    try:
        assert case.test() is None
    except unittest.SkipTest:
        # pytest would count this test as skipped.
        pytest.fail("the instance was not asked")
    assert case.handled == "Need at least 2 CUDA devices"
    machine.cuda = 2
    assert case.test() == "ran"


@pytest.mark.parametrize(
    ("apply", "message"),
    [
        (lambda: dist_testing.skip_if_lt_x_gpu(body), "@skip_if_lt_x_gpu: got the function body instead"),  # type: ignore[arg-type]
        (lambda: dist_testing.skip_if_lt_x_gpu(-1), "@skip_if_lt_x_gpu: got -1 instead"),
        (lambda: dist_testing.skip_if_lt_x_gpu(True), "@skip_if_lt_x_gpu: got True instead"),
        (lambda: dist_testing.nccl_skip_if_lt_x_gpu("nccl", "2"), "@nccl_skip_if_lt_x_gpu"),  # type: ignore[arg-type]
        (lambda: dist_testing.requires_world_size("2"), "@requires_world_size: got '2' instead"),  # type: ignore[arg-type]
        (lambda: dist_testing.skip_if_no_gpu(SimpleNamespace), "SimpleNamespace is a class"),
        (lambda: dist_testing.requires_gloo(body), "@requires_gloo: got the function body instead"),  # type: ignore[call-arg]
        (lambda: dist_testing.skip_if_rocm_arch_multiprocess(body), "@skip_if_rocm_arch_multiprocess: got the"),  # type: ignore[arg-type]
    ],
)
def test_misused_decorators_are_refused_at_once(apply: Callable[[], Any], message: str) -> None:
    """If this fails, a misused decorator replaces the test with a function that never runs."""
    assert message in refusal(apply)


def test_a_rank_only_requirement_is_not_checked_in_the_runner() -> None:
    """If this fails, the runner imports packages or initialises CUDA, and can no longer fork ranks."""
    asked = []
    rank_only = requirement(lambda environment: asked.append(1) or "no", on_rank_only=True)  # type: ignore[func-returns-value]
    assert unmet_requirement(rank_only(body), {}) is None
    assert not asked
    assert reason_on_rank(rank_only(body)) == "no"

    class Case(unittest.TestCase):
        """A class cannot be wrapped: unittest would not find it."""

    assert rank_only(Case) is Case
    assert Case.__unittest_skip_why__ == "no"  # type: ignore[attr-defined]


def test_transformers_is_imported_only_on_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, the runner imports a slow package that starts threads, or a package without BERT counts."""
    decorated = dist_testing.import_transformers_or_skip()(body)
    text = TEST_SKIPS["importerror"].message
    assert unmet_requirement(decorated, {}) == f"{text} (transformers)"
    transformers = ModuleType("transformers")
    transformers.__spec__ = SimpleNamespace()  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    assert unmet_requirement(decorated, {}) is None
    assert (reason_on_rank(decorated) or "").startswith(text)
    transformers.AutoModelForMaskedLM = transformers.BertConfig = object  # type: ignore[attr-defined]
    assert reason_on_rank(decorated) is None


@pytest.mark.parametrize(
    ("decorator", "is_there"),
    [
        (dist_testing.requires_gloo, dist.is_gloo_available()),
        (dist_testing.requires_nccl, dist.is_nccl_available()),
        (dist_testing.requires_mpi, dist.is_mpi_available()),
        (dist_testing.requires_ucc, dist.is_ucc_available()),
        (dist_testing.requires_xccl, dist.is_xccl_available()),
    ],
)
def test_a_backend_that_torch_lacks_skips_tests_and_classes(
    decorator: Callable[[], Callable[[Any], Any]], is_there: bool
) -> None:
    """If this fails, a missing backend fails in init_process_group instead of a skip."""

    @decorator()
    class Case(unittest.TestCase):
        """A class without tests."""

    assert getattr(Case, "__unittest_skip__", False) is not is_there
    assert (reason_on_rank(decorator()(body)) is None) is is_there


def test_accelerator_backends_are_looked_up_by_name(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a test is skipped although one of its backends exists, or runs although none does."""
    available = {"xccl"}
    monkeypatch.setattr(dist, "is_backend_available", lambda name: name in available)
    decorate = dist_testing.requires_accelerator_dist_backend
    assert reason_on_rank(decorate()(body)) is None
    assert reason_on_rank(decorate(["nccl", "xccl"])(body)) is None
    assert "['nccl', 'gloo']" in (reason_on_rank(decorate(["nccl", "gloo"])(body)) or "")


def test_nccl_versions_are_compared(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a test runs on an NCCL that is too old, or skips without a GPU for the wrong reason."""
    monkeypatch.setattr(dist, "is_backend_available", lambda name: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 26, 1))
    assert reason_on_rank(dist_testing.requires_nccl_shrink()(body)) is None
    machine.cuda = 1
    assert "found: (2, 26, 1), reason: Need NCCL 2.27+" in (
        reason_on_rank(dist_testing.requires_nccl_shrink()(body)) or ""
    )
    assert reason_on_rank(dist_testing.requires_nccl_version((2, 26), "x")(body)) is None


def test_platforms_have_their_own_decorators(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, tests for CUDA run on ROCm, whose devices are also called cuda, or gloo's on Windows."""
    older = dist_testing.skip_if_rocm_ver_lessthan_multiprocess
    newer = dist_testing.skip_if_rocm_ver_atleast_multiprocess
    arch = dist_testing.skip_if_rocm_arch_multiprocess
    decorators: dict[str, Callable[[], Callable[[Any], Any]]] = {
        "any": lambda: dist_testing.skip_if_rocm_multiprocess,
        "older than 6.3": lambda: older((6, 3)),
        "older than 6.2": lambda: older((6, 2)),
        "older": older,
        "gfx942": lambda: arch(("gfx942",)),
        "gfx90a": lambda: arch(("gfx90a",)),
        "from 6.2": lambda: newer((6, 2)),
        "from 6.2.41133": lambda: newer((6, 2, 41133)),
        "from 6.3": lambda: newer((6, 3)),
        "from 7": lambda: newer([7]),
        "from none": lambda: newer(None),
        "windows": dist_testing.skip_if_win32,
    }

    def reasons() -> dict[str, str]:
        found = {name: reason_on_rank(make()(body)) for name, make in decorators.items()}
        return {name: reason for name, reason in found.items() if reason is not None}

    assert reasons() == {}
    monkeypatch.setattr(torch.version, "hip", "6.2.41133-dd7f95766")
    properties = SimpleNamespace(gcnArchName="gfx942:sramecc+:xnack-")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    found = reasons()
    assert list(found) == ["any", "older than 6.3", "older", "gfx942", "from 6.2", "from 6.2.41133"]
    assert found["any"] == TEST_SKIPS["skipIfRocm"].message
    assert "ROCm (6, 2, 41133) is available but (6, 3) required" in found["older than 6.3"]
    assert "gfx942" in found["gfx942"]
    assert found["from 6.2"].endswith("known failure on ROCm (6, 2, 41133) (>= (6, 2))")
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(sys, "platform", "win32")
    # torch's own way to switch tests of ROCm off.
    monkeypatch.setenv("PYTORCH_TEST_WITH_ROCM", "1")
    assert [*reasons()] == ["any", "windows"]


def test_a_method_can_ask_for_its_world_size(machine: SimpleNamespace) -> None:
    """If this fails, a class starts the wrong number of ranks, or a test runs with fewer GPUs than ranks."""
    machine.cuda = 3

    class Case(unittest.TestCase):
        @dist_testing.requires_world_size(3)
        def test_three(self) -> None: ...

        @dist_testing.requires_world_size(4)
        def test_four(self) -> None: ...

        def test_any(self) -> None: ...

    class Broken(Case):
        def __getattribute__(self, name: str) -> Any:
            if name == "test_three" and "_outcome" in vars(self):
                raise ValueError("planted")
            return super().__getattribute__(name)

    assert dist_testing.get_required_world_size(Case("test_three"), 2) == 3
    assert dist_testing.get_required_world_size(Case("test_four"), 2) == 4
    assert dist_testing.get_required_world_size(Case("test_any"), 2) == 2
    assert dist_testing.get_required_world_size(Case(), 2) == 2
    with pytest.raises(ValueError, match="planted"):
        dist_testing.get_required_world_size(Broken("test_three"), 2)
    skipped = {name for name in ("test_three", "test_four") if getattr(getattr(Case, name), "__unittest_skip__", False)}
    assert skipped == {"test_four"}


def test_gpus_are_assigned_to_ranks(machine: SimpleNamespace) -> None:
    """If this fails, two ranks share a GPU: suites take the first index for the rank's device."""
    expected: dict[int, list[list[int]]] = {4: [[0], [1], [2], [3]], 8: [[0], [1], [2], [3]], 3: [[], [], [], []]}
    for machine.cuda, indices in expected.items():
        assert dist_testing.init_multigpu_helper(4, "nccl") == dict(enumerate(indices))


def test_what_suites_ask_about_devices(machine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a suite's own check raises on a machine without a GPU, or DDP gets ids that its device refuses."""
    # A test that computes how many GPUs it needs may need none.
    check_count("skip_if_lt_x_gpu", 0, "GPUs")
    assert not dist_testing.at_least_x_gpu(1)
    assert not dist_testing.at_least_x_gpu(0)
    assert not accelerators.evaluate_platform_supports_symm_mem()
    assert reason_on_rank(dist_testing.requires_multicast_support()(body)) == "multicast support is not available"
    assert [name for name in ("cpu", "cuda", "xpu", "hpu") if dist_testing.requires_ddp_rank(name)] == ["cuda", "xpu"]
    # HPUs come with a plug-in.
    monkeypatch.setattr(torch, "hpu", SimpleNamespace(device_count=lambda: 2), raising=False)
    assert dist_testing.at_least_x_gpu(2)
    assert not dist_testing.at_least_x_gpu(3)
    machine.cuda = 1
    assert accelerators.evaluate_platform_supports_symm_mem()


def test_capabilities_are_compared_on_cuda_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, tests are skipped on devices that have no compute capability."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    cuda = torch.device("cuda")
    assert dist_testing.sm_is_or_higher_than(torch.device("cpu"), 99, 0)
    assert dist_testing.sm_is_or_higher_than(cuda, 9, 0)
    assert not dist_testing.sm_is_or_higher_than(cuda, 10, 0)
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert not dist_testing.sm_is_or_higher_than(cuda, 9, 0)
