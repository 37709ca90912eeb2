"""`world.parity`: what a function computes on one rank alone must be what it computes on all ranks."""

from __future__ import annotations

import inspect
import io
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.layout import Layout
from dist_testing.core.ground.world import AsksRunner, World

# What a step has: by its path, such as "model['weight']", a tensor or a number.
_Step = dict[str, torch.Tensor | int | float | bool]


class Parity:
    """Compares a run on one rank with a run on all; a test gets it as `world.parity`."""

    def __init__(self, world: World, runner: AsksRunner, layout: Layout) -> None:
        self._world = world
        self._calls = 0

    def __call__(
        self, fn: Callable[[dist.ProcessGroup], Any], *, rtol: float = 1e-5, atol: float = 1e-8, seed: int = 0
    ) -> None:
        """Run `fn` on rank 0 alone, then on all ranks, and compare what it returns; all ranks call this together.

            def train(group):
                model = DistributedDataParallel(make_model(), process_group=group)
                for batch in batches_of(group):
                    yield {"loss": step(model, batch, group), "model": model.module.state_dict()}

            world.parity(train, rtol=1e-4)

        `fn` gets a process group: one of rank 0 alone, then the default group. It returns a state: nested dicts, lists
        and tuples of tensors and numbers. A generator yields a state after each step. Each rank compares its states
        with those of rank 0 alone, so `fn` reduces what depends on the rank, such as the loss of its part of a batch.
        torch's generators begin with `seed` in both runs. Ranks that are threads share them: there `fn` makes its own.

        Args:
            fn: The function. Its tensors are compared on the CPU.
            rtol: Tolerance as a part of the value of one rank alone.
            atol: Tolerance that is added to it.
            seed: For `torch.manual_seed`, before each run.

        Raises:
            AssertionError: On the rank with the first difference, and only there: it names step, tensor and values.
            UsageError: If a state has something other than tensors and numbers, or if all states are empty.
        """
        __tracebackhide__ = True
        world = self._world
        self._calls += 1
        key = f"dist_testing/parity/{world._cases}/{self._calls}"
        alone = dist.new_group([0])
        if world.rank == 0:
            try:
                expected = self._run(fn, alone, seed)
            except Exception as error:
                error.add_note("It is from the run of world.parity on rank 0 alone.")
                raise
            # Through the store: it needs no backend, and nothing is unpickled on the other ranks.
            saved = io.BytesIO()
            torch.save(expected, saved)
            world.store.set(key, saved.getvalue())  # type: ignore[arg-type]  # bytes, too
            dist.destroy_process_group(alone)
        # Here the others wait for rank 0. The ledger knows this wait, so a hang of `fn` is proven.
        world.barrier()
        if world.rank != 0:
            expected = torch.load(io.BytesIO(world.store.get(key)), weights_only=True)
        found = _compare(self._run(fn, world.group, seed), expected, rtol, atol)
        world.store.set(f"{key}/{world.rank}", json.dumps(found))
        world.barrier()
        told = [json.loads(world.store.get(f"{key}/{rank}")) for rank in range(world.size)]
        # The first step that differs, of the first rank.
        differences = sorted((one[0], rank, one[1]) for rank, one in enumerate(told) if one is not None)
        if differences and differences[0][1] == world.rank:
            step, _, text = differences[0]
            others = ", ".join(str(rank) for _, rank, _ in differences[1:])
            also = f"rank(s) {others} differ in this step or later" if others else "the other ranks agree"
            raise AssertionError(
                f"world.parity: step {step}, rank {world.rank}: {text}.\n"
                f"{f'Steps 0 to {step - 1} agree' if step else 'It is the first step'}; {also}.\n"
                f"The tolerances are rtol={rtol:g} and atol={atol:g}; a step is what the function yields or returns."
            )

    def _run(self, fn: Callable[[dist.ProcessGroup], Any], group: dist.ProcessGroup, seed: int) -> list[_Step]:
        """Return the steps of a run. The generators are as before afterwards."""
        device = self._world.device
        devices, kind = ([], "cuda") if device.type == "cpu" else ([device.index], device.type)
        with torch.random.fork_rng(devices, device_type=kind):
            torch.manual_seed(seed)
            states = fn(group)
            steps = [dict(_leaves("", state)) for state in (states if inspect.isgenerator(states) else [states])]
        if not any(steps):
            raise UsageError(
                "world.parity: the function has yielded or returned no tensor and no number.\n"
                "Then there is nothing to compare. Most likely it has no batch, or its states are empty.\n"
                "Yield a state after each step, or return one."
            )
        return steps


def _leaves(path: str, state: Any) -> Iterator[tuple[str, torch.Tensor | int | float | bool]]:
    """Yield the tensors and numbers of a state with their paths. Tensors are copies: the next step changes them."""
    if isinstance(state, torch.Tensor):
        # A meta tensor cannot be copied to the CPU.
        copy = state.detach() if state.is_meta else state.detach().to("cpu", copy=True)
        if type(copy) is not torch.Tensor or copy.layout is not torch.strided or copy.is_meta or copy.is_nested:
            raise _refused(path, f"a {type(copy).__name__} of layout {copy.layout} on device {copy.device.type}")
        yield path or "the value", copy
    elif type(state) in (int, float, bool):
        yield path or "the value", state
    elif isinstance(state, Mapping):
        for name, one in state.items():
            yield from _leaves(f"{path}[{name!r}]", one)
    elif isinstance(state, (list, tuple)):
        for number, one in enumerate(state):
            yield from _leaves(f"{path}[{number}]", one)
    else:
        raise _refused(path, f"of type {type(state).__name__}")


def _refused(path: str, what: str) -> UsageError:
    return UsageError(
        f"world.parity: {path or 'the value'} is {what}.\n"
        "States are nested dicts, lists and tuples of plain tensors and numbers.\n"
        "Leave it out of what the function yields or returns, or yield its tensors: full_tensor() of a DTensor, "
        "to_dense() of a sparse one."
    )


def _compare(actual: list[_Step], expected: list[_Step], rtol: float, atol: float) -> tuple[int, str] | None:
    """Return the first step that differs, and how; None if none does."""
    for step, (one, other) in enumerate(zip(actual, expected, strict=False)):
        if one.keys() != other.keys():
            return step, f"only in one of the runs: {', '.join(sorted(one.keys() ^ other.keys()))}"
        for path, value in one.items():
            if text := _difference(torch.as_tensor(value), torch.as_tensor(other[path]), rtol, atol):
                return step, f"{path} {text}"
    if len(actual) != len(expected):
        return min(len(actual), len(expected)), f"{len(actual)} steps on all ranks, {len(expected)} on one rank alone"
    return None


def _difference(actual: torch.Tensor, expected: torch.Tensor, rtol: float, atol: float) -> str:
    """Return how two tensors differ, with both values at the largest difference; "" if they are close."""
    if (actual.shape, actual.dtype) != (expected.shape, expected.dtype):
        return (
            f"is {actual.dtype} of shape {list(actual.shape)} on all ranks, "
            f"{expected.dtype} of shape {list(expected.shape)} on one rank alone"
        )
    wide = torch.complex128 if actual.is_complex() else torch.float64
    if not (rtol or atol or actual.is_complex() or actual.is_floating_point()):
        # A float has no room for all digits of a checksum.
        wide = torch.int64
    close = torch.isclose(actual.to(wide), expected.to(wide), rtol=rtol, atol=atol, equal_nan=True)
    if close.all():
        return ""
    # A NaN against a number is the largest difference.
    apart = torch.where(close, -1.0, (actual.to(wide) - expected.to(wide)).abs()).nan_to_num(torch.inf)
    largest = int(apart.argmax())
    place = [int(index) for index in torch.unravel_index(torch.tensor(largest), actual.shape)]
    return (
        f"differs: {actual.flatten()[largest].item()!r} on all ranks and {expected.flatten()[largest].item()!r} on one "
        f"rank alone{f' at {place}' if place else ''}; largest difference {apart.max().item():.3g}, "
        f"{int((~close).sum())} of {close.numel()} elements differ"
    )
