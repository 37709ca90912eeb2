"""The GPUs that a target asks for, the promise of GPUs, the device of a rank, and faults of devices."""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from dist_testing.core.engine.hooks import ResourceWish
from dist_testing.core.ground.backends import Backend, backend_named
from dist_testing.core.ground.errors import DistTestingError, SpecError
from dist_testing.core.ground.layout import Layout
from dist_testing.core.ground.outcomes import Cause, Kind, RankOutcome, Status, Verdict, verdict
from dist_testing.core.ground.spec import Spec
from dist_testing.core.ground.world import NoRunner, WorldSettings
from dist_testing.core.launch.isolation import FORK
from dist_testing.core.rank.rank_world import RankWorld, finish_device_work
from dist_testing.gpus.needs import ALL_GPUS, GpuNeeds, from_options, needs_of, of_target, promised, read_promise
from dist_testing.gpus.world_gpus import GpuResource, blame_by_error, blame_machine
from tests.support.results import case_of, refusal, result_of

# No runner has started these ranks.
_ALONE = NoRunner("", "")


def world(
    rank: int, devices: tuple[int, ...] = (0, 1, 2, 3), *, device: str = "cuda", init: bool = False, binds: bool = False
) -> RankWorld:
    """A rank of a world of four."""
    settings = WorldSettings(Backend("gloo", "gloo", device, binds_device=binds), 60.0, init, devices)
    store = HashStore()
    return RankWorld(
        rank, Layout(4), settings, directory=Path(), store_port=0, store_fd=None, store=store, runner=_ALONE
    )


@pytest.mark.parametrize(
    ("gpus_per_rank", "ranks_per_gpu", "expected"),
    [(1, 1, [0, 1, 2, 3]), (2, 1, [0, 2, 4, 6]), (1, 2, [0, 0, 1, 1]), (1, 4, [0, 0, 0, 0]), (1, 3, [0, 0, 0, 1])],
)
def test_a_ranks_device_is_one_of_its_own(gpus_per_rank: int, ranks_per_gpu: int, expected: list[int]) -> None:
    """A missing device is an error."""
    needs = GpuNeeds("cuda_gloo", gpus_per_rank, ranks_per_gpu)
    spec = Spec("", backend_named("cuda_gloo"), (4,), "fork", settings={"gpus": needs})
    # Ranks that another launcher has started have their GPUs.
    given = dataclasses.replace(FORK, starts_ranks=False)
    wish = ResourceWish(case_of(4), spec, given, 60.0, Path(), print)
    held = GpuResource().acquire(wish)
    assert held is not None
    ranks = [world(rank, tuple(held.devices)) for rank in range(4)]
    assert [rank.device for rank in ranks] == [torch.device("cuda", index) for index in expected]


def test_ranks_take_the_devices_of_a_plug_in_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library leases none of them, and rank 3 of a world on two devices must not ask for a fourth."""
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace(device_count=lambda: 2))
    ranks = [world(rank, (), device="privateuseone") for rank in range(4)]
    assert [rank.device.index for rank in ranks] == [0, 1, 0, 1]


@pytest.mark.parametrize("binds", [True, False])
def test_a_group_gets_the_ranks_device_where_the_backend_says_so(monkeypatch: pytest.MonkeyPatch, binds: bool) -> None:
    """Without it NCCL guesses, and warns; other backends may not know the argument."""
    given: dict[str, Any] = {}
    monkeypatch.setattr("torch.distributed.init_process_group", lambda backend, **arguments: given.update(arguments))
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace(set_device=lambda device: None))
    world(2, init=True, binds=binds).prepare()
    assert given["device_id"] == (torch.device("cuda", 2) if binds else None)


@pytest.mark.parametrize(
    ("devices", "fractions"), [((0, 1, 2, 3), []), ((0, 0, 0, 0), [(0.2, torch.device("cuda", 0))])]
)
def test_ranks_that_share_get_a_part_of_the_memory_each(
    monkeypatch: pytest.MonkeyPatch, devices: tuple[int, ...], fractions: list[tuple[float, torch.device]]
) -> None:
    """One rank with a leak would fail the others, and the report would blame them."""
    told: list[tuple[float, torch.device]] = []
    module = SimpleNamespace(
        set_device=lambda device: None,
        set_per_process_memory_fraction=lambda fraction, device: told.append((fraction, device)),
    )
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    world(0, devices).prepare()
    assert told == fractions


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A fake CUDA whose device is busy until the end of the test, or fails as the test chooses."""
    release = threading.Event()
    fake = SimpleNamespace(errors={}, busy=set(), initialised=True, contexts={3}, asked=set())

    def synchronize(device: int) -> None:
        fake.asked.add(device)
        if device in fake.busy:
            release.wait()
        elif device in fake.errors:
            raise fake.errors[device]

    module = ModuleType("torch")
    module.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        is_initialized=lambda: fake.initialised,
        current_device=lambda: 3,
        device_count=lambda: 4,
        synchronize=synchronize,
    )
    # Private: torch's own tests use this function to ask whether a device was touched.
    fake.private = SimpleNamespace(_cuda_hasPrimaryContext=lambda device: device in fake.contexts)
    module._C = fake.private  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", module)
    yield fake
    release.set()
    for thread in threading.enumerate():
        if thread.name == "waits for the device":
            thread.join()


_ASSERT = RuntimeError("CUDA error: device-side assert triggered")


@pytest.mark.parametrize(
    ("contexts", "busy", "failing", "asked"),
    [
        # The current device of a new thread is the first one, and synchronizing that would make a context on it.
        ({3}, set(), 3, {3}),
        # Also while the first of two GPUs is still busy.
        ({1, 2, 3}, {1}, 2, {1, 2, 3}),
        # The function is private to torch and may disappear; then only the current device is asked.
        (None, set(), 3, {3}),
    ],
)
def test_errors_of_all_the_ranks_devices_are_raised(
    cuda: Any, contexts: set[int] | None, busy: set[int], failing: int, asked: set[int]
) -> None:
    """If this fails, no case reports a device-side assert in the last kernel of a test."""
    if contexts is None:
        del cuda.private._cuda_hasPrimaryContext
    else:
        cuda.contexts = contexts
    cuda.busy, cuda.errors = busy, {failing: _ASSERT}
    with pytest.raises(RuntimeError, match="device-side assert"):
        finish_device_work(limit_s=1.0)
    assert cuda.asked == asked


def test_a_device_that_stays_busy_is_left_alone(cuda: Any) -> None:
    """A test of an absent peer ends although its kernel still waits for that peer."""
    cuda.busy = {3}
    finish_device_work(limit_s=0.01)
    # Most ranks do not use CUDA, and must not start it.
    cuda.initialised, cuda.asked = False, set()
    finish_device_work()
    assert cuda.asked == set()


@pytest.mark.parametrize(
    ("summary", "expected"),
    [
        ("AcceleratorError: CUDA error: uncorrectable ECC error encountered", True),
        ("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", True),
        ("AcceleratorError: CUDA error: no CUDA-capable device is detected", True),
        ("RuntimeError: no CUDA-capable device is detected", False),
        ("AcceleratorError: CUDA error: an illegal memory access was encountered", False),
        ("AcceleratorError: CUDA error: device-side assert triggered", False),
        ("AcceleratorError: CUDA error: out of memory", False),
        ("OutOfMemoryError: CUDA out of memory", False),
        ("AcceleratorError: CUDA error: unspecified launch failure", False),
        ("AssertionError: CUDA error: uncorrectable ECC error encountered", False),
        ("AcceleratorError: it said: CUDA error: uncorrectable ECC error encountered", False),
        ("AcceleratorError: CUDA error: uncorrectable ECC error encountered by my test", False),
        ("", False),
    ],
)
def test_only_errors_that_hardware_alone_can_cause_are_hardware_faults(summary: str, expected: bool) -> None:
    """Blaming the machine for a test's own illegal access hides a bug for ever."""
    outcomes = (RankOutcome(0, Kind.RAISED, summary=summary), RankOutcome(1, Kind.PASSED))
    result = blame_by_error(result_of(outcomes))
    assert result.verdict.cause is (Cause.INFRASTRUCTURE if expected else Cause.FAILURE)


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (Kind.PASSED, Cause.RESOURCE),
        (Kind.SKIPPED, Cause.RESOURCE),
        (Kind.RAISED, Cause.FAILURE),
        (Kind.SIGNALLED, Cause.CRASH),
        (Kind.HUNG, Cause.HANG),
    ],
)
def test_memory_left_behind_is_no_excuse_for_anything_worse(kind: Kind, cause: Cause) -> None:
    """The worse outcome came first and explains the memory."""
    outcome = RankOutcome(0, kind, reason="r", signal=9)
    found = verdict([outcome], left=["GPU 0: 3.0 GiB more"])
    assert found.cause is cause
    assert verdict([outcome], left=["g"], leaked=["sleep"]).cause is (Cause.LEAK if cause is Cause.RESOURCE else cause)


_PASSED = Verdict(Status.PASSED)
_SKIPPED = Verdict(Status.SKIPPED, reason="a reason")
_FAILED = Verdict(Status.FAILED, Cause.CRASH, "rank 1 was killed", culprit=1, victims=(0,))
_STOPPED = Verdict(Status.FAILED, Cause.INTERRUPTED, "the run was stopped")
_BLAMED = Verdict(Status.FAILED, Cause.INFRASTRUCTURE, "GPU 0: Xid 79; rank 1 was killed", culprit=1, victims=(0,))


@pytest.mark.parametrize(
    ("found", "faults", "lost", "expected"),
    [
        (_PASSED, [], "", _PASSED),
        (_PASSED, ["GPU 0: Xid 79"], "", _PASSED),
        (_SKIPPED, ["GPU 0: Xid 79"], "", _SKIPPED),
        (_FAILED, [], "", _FAILED),
        (_FAILED, ["GPU 0: Xid 79"], "", _BLAMED),
        (_FAILED, [], "GPU 0: Xid 79", _BLAMED),
        (_PASSED, [], "GPU 0: lost", Verdict(Status.FAILED, Cause.INFRASTRUCTURE, "GPU 0: lost")),
        (_STOPPED, ["GPU 0: Xid 79"], "GPU 0: lost", _STOPPED),
    ],
)
def test_a_broken_gpu_excuses_failures_and_a_lost_one_is_a_failure(
    found: Verdict, faults: list[str], lost: str, expected: Verdict
) -> None:
    """Developers would look for a bug in the test; or the next case on the lost GPU would fail first."""
    assert blame_machine(found, faults=faults, lost=lost) == expected


_GOOD = {"archs": ["sm_90"], "per_rank": 1, "ranks_per_gpu": 2}


def _spec(backend: str = "cuda_gloo", needs: GpuNeeds | None = None) -> Spec:
    return Spec("//t:x", backend_named(backend), (4,), "fork", settings={} if needs is None else {"gpus": needs})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file with the promise."""
    return tmp_path / "gpu_promise.json"


def refused(path: Path) -> str:
    """Return the error for a bad promise, which names the file."""
    text = refusal(lambda: read_promise(path, "nvidia"), SpecError)
    assert str(path) in text.partition("\n")[0]
    return text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"per_rank": -1}, "gpus: per_rank = -1"),
        ({"per_rank": None}, "gpus: per_rank = None"),
        ({"per_rank": True}, "gpus: per_rank = True"),
        ({"per_rank": 0.5}, "gpus: per_rank = 0.5"),
        ({"ranks_per_gpu": 0}, "gpus: ranks_per_gpu = 0"),
        ({"archs": "sm_90"}, "gpus: archs = 'sm_90'"),
        ({"more": 1}, "gpus: unknown field"),
        # Which GPUs such ranks share is undefined.
        ({"per_rank": 2}, "ranks_per_gpu = 2 with backend cuda_gloo and 2 GPU(s) per rank"),
    ],
)
def test_what_a_target_cannot_ask_for_is_named(changes: dict[str, object], said: str) -> None:
    """If this fails, ranks get too few GPUs, or the user does not see that another version built the target."""
    assert of_target(_spec(), _GOOD) == GpuNeeds("cuda_gloo", 1, 2, ("sm_90",))
    first, _, way_out = refusal(lambda: of_target(_spec(), {**_GOOD, **changes}), DistTestingError).splitlines()
    assert first.startswith(f"//t:x, {said}" if said.startswith("gpus") else f"//t:x: {said}")
    assert way_out.startswith("Build the target again") or not said.startswith("gpus")


@pytest.mark.parametrize(
    ("backend", "count", "said"),
    [
        ("rccl", "2", "backend rccl and 1 GPU(s) per rank"),
        ("gloo", "2", "backend gloo and 0 GPU(s) per rank"),
        ("cuda_gloo", "0", "expected a number from 1"),
        ("cuda_gloo", "two", "expected a number from 1"),
    ],
)
def test_ranks_that_cannot_share_are_refused(backend: str, count: str, said: str) -> None:
    """RCCL itself reports "Duplicate GPU detected" after a minute."""
    assert from_options(_spec("nccl"), {"--dist-ranks-per-gpu": "4"}) == GpuNeeds("nccl", 1, 4)
    first, *_ = refusal(lambda: from_options(_spec(backend), {"--dist-ranks-per-gpu": count})).splitlines()
    assert first.startswith(f"--dist-ranks-per-gpu={count}")
    assert said in first


@pytest.mark.parametrize(("backend", "expected"), [("cuda_gloo", (1, 2)), ("nccl", (1, 1)), ("gloo", (0, 1))])
def test_another_backend_has_its_own_needs(backend: str, expected: tuple[int, int]) -> None:
    """If this fails, ranks of NCCL share a GPU, or ranks of gloo wait for one."""
    needs = needs_of(_spec(backend, GpuNeeds("cuda_gloo", 1, 2)))
    assert (needs.per_rank, needs.ranks_per_gpu) == expected


@pytest.mark.parametrize(("counts", "expected"), [({"nvidia": 8, "amd": 2}, 8), ({"nvidia": 0}, 0), (None, None)])
def test_a_promise_is_read(path: Path, counts: dict[str, int] | None, expected: int | None) -> None:
    """If this fails, missing hardware is a skip where it must be a failure."""
    path.write_text(json.dumps({"promised": counts, "schema": 1}), encoding="utf-8")
    assert read_promise(path, "nvidia") == expected


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "damaged"),
        (b"", "damaged"),
        (b"[" * 100_000, "damaged"),
        (b"\xff\xfe\xfa{}", "damaged"),
        (b"[]", "expected an object"),
        (b'{"schema": 2, "promised": null}', "schema = 2"),
        (b'{"schema": 1, "promised": 8}', "promised = 8"),
        (b'{"schema": 1, "promised": {}}', "nothing for nvidia"),
        (b'{"schema": 1, "promised": {"nvidia": -1}}', "'nvidia': -1"),
        (b'{"schema": 1, "promised": {"nvidia": "8"}}', "'nvidia': '8'"),
        (b'{"schema": 1, "promised": {"nvidia": false}}', "'nvidia': False"),
        # A user who starts the main program by hand.
        (None, "`bazel test`"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_a_bad_promise_is_refused(path: Path, content: bytes | None, said: str) -> None:
    """If this fails, a damaged promise counts as no promise, and failures become skips."""
    if content is not None:
        path.write_bytes(content)
    assert said in refused(path)
    # A path that was cut off.
    assert "cannot be read" in refused(path.parent)


@pytest.mark.parametrize(
    ("gpus_per_rank", "count", "expected"),
    [
        (1, None, ""),
        (1, 0, ""),
        (1, 3, ""),
        (1, 4, "4 GPU(s) ("),
        (1, 8, "8 GPU(s) ("),
        (2, 4, ""),
        (0, 8, ""),
        # Not the number that means it.
        (1, ALL_GPUS, "all the GPUs that tests ask for ("),
    ],
)
def test_a_promise_holds_for_worlds_that_fit_it(gpus_per_rank: int, count: int | None, expected: str) -> None:
    """If this fails, a CPU world, or one larger than the promise, fails instead of being skipped."""
    spec = _spec("nccl", GpuNeeds("nccl", gpus_per_rank, promised=count))
    assert bool(spec.promises(4)) is bool(expected)
    assert promised(spec, 4).startswith(expected)
    assert GpuNeeds("nccl", gpus_per_rank).of(4) == 4 * gpus_per_rank
