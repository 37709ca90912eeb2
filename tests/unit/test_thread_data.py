"""What the group of threads does with tensors, without any thread."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dist_testing.threaded import data
from dist_testing.threaded.data import Share


@pytest.mark.parametrize("size", [3, 22_000])
@pytest.mark.parametrize(
    ("op", "expected"),
    [("SUM", 6), ("AVG", 2), ("PRODUCT", 6), ("MIN", 1), ("MAX", 3), ("BAND", 0), ("BOR", 3), ("BXOR", 0)],
)
def test_reductions_of_few_and_of_many_elements(op: str, expected: int, size: int) -> None:
    """If this fails, a large tensor is reduced in another way than a small one: each has code of its own."""
    tensors = [torch.full((size,), rank + 1) for rank in range(3)]
    data.all_reduce(op, [Share([tensor], [tensor]) for tensor in tensors])
    assert all(bool((tensor == expected).all()) for tensor in tensors)


@pytest.mark.parametrize(("dtype", "expected"), [(torch.int64, -1), (torch.float32, -1.5), (torch.complex64, -1.5)])
def test_an_average_of_integers_is_truncated(dtype: torch.dtype, expected: float) -> None:
    """If this fails, the average differs from NCCL's."""
    tensors = [torch.tensor([value], dtype=dtype) for value in (-1, -2)]
    data.all_reduce("AVG", [Share([tensor], [tensor]) for tensor in tensors])
    assert tensors[0].item() == tensors[1].item() == expected


def test_each_rank_has_a_factor_of_its_own() -> None:
    """If this fails, the factor of one rank scales the parts of all."""
    tensors = [torch.ones(2), torch.ones(1, 2)]
    factors: list[float | Tensor] = [2.0, torch.tensor([3.0, 4.0])]
    shares = [Share([tensor], [tensor], factor) for tensor, factor in zip(tensors, factors, strict=True)]
    data.all_reduce("PREMUL_SUM", shares)
    assert (tensors[0].tolist(), tensors[1].tolist()) == ([5.0, 6.0], [[5.0, 6.0]])


def test_a_move_does_not_appear_in_what_the_last_rank_records() -> None:
    """If this fails, a trace of one rank has the work of all ranks, and which rank that is depends on timing."""
    seen: list[str] = []

    class Record(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
        def __torch_dispatch__(self, function: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    source, target = torch.ones(2, requires_grad=True), torch.zeros(2)
    grads = []

    def move(output: Tensor, value: Tensor) -> None:
        grads.append(torch.is_grad_enabled())
        data.copy(output, value)

    with Record():  # type: ignore[no-untyped-call]  # torch's
        data.run_move(move, target, source, devices=[])
        assert seen == []
        data.copy(torch.zeros(1), torch.ones(1))
    assert seen
    assert target.tolist() == [1.0, 1.0]
    assert target.grad_fn is None
    data.run_move(move, target, source, devices=[])
    with torch.no_grad():
        data.run_move(move, target, source, devices=[])
        assert not torch.is_grad_enabled()
    assert grads == [False] * 3
    # A rank whose collective failed must not train on without gradients.
    with pytest.raises(data.UnequalError, match=r"float32\[3\] does not fit into float32\[2\]"):
        data.run_move(data.copy, torch.zeros(2), torch.ones(3), devices=[])
    assert torch.is_grad_enabled()


def test_a_move_waits_for_the_streams_of_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, another thread reads a GPU's memory before the result is there."""
    device = torch.device("cuda", 1)
    tensors: list[Any] = [torch.ones(1), torch.ones(1, device="meta"), *[SimpleNamespace(device=device)] * 2]
    assert data.accelerators(tensors) == {device}
    waited: list[object] = []

    def stream_of(*where: object) -> SimpleNamespace:
        return SimpleNamespace(synchronize=lambda: waited.extend(where))

    monkeypatch.setattr(
        torch,
        "get_device_module",
        lambda kind: SimpleNamespace(current_stream=lambda of: stream_of(kind, of)),
    )
    data.run_move(data.meet_only, [], devices=[device])
    assert waited == ["cuda", device]


def test_what_each_rank_gives_and_gets() -> None:
    """If this fails, a rank gets the part of another one."""
    outputs = [torch.zeros(2), torch.zeros(2)]
    inputs = [[torch.full((2,), 10.0 * rank + part) for part in range(2)] for rank in range(2)]
    data.reduce_scatter("SUM", [Share([outputs[rank]], inputs[rank]) for rank in range(2)])
    assert [output[0].item() for output in outputs] == [10.0, 12.0]
    data.reduce_scatter_single("MAX", [Share([outputs[rank]], [torch.cat(inputs[rank])]) for rank in range(2)])
    assert [output[0].item() for output in outputs] == [10.0, 11.0]
    data.reduce("PRODUCT", 1, [Share([output], [output]) for output in outputs])
    assert [output[0].item() for output in outputs] == [10.0, 110.0]
    data.broadcast(1, [Share([output], [output]) for output in outputs])
    assert [output[0].item() for output in outputs] == [110.0, 110.0]
    lists = [[torch.zeros(2), torch.zeros(2)] for _ in range(2)]
    data.all_gather([Share(lists[rank], [inputs[rank][1]]) for rank in range(2)])
    assert [[part[0].item() for part in parts] for parts in lists] == [[1.0, 11.0]] * 2
    data.gather(0, [Share(lists[0], [inputs[0][0]]), Share([], [inputs[1][0]])])
    assert [part[0].item() for part in lists[0]] == [0.0, 10.0]
    data.scatter(1, [Share([outputs[0]]), Share([outputs[1]], inputs[1])])
    assert [output[0].item() for output in outputs] == [10.0, 11.0]
    data.all_to_all([Share(inputs[rank], inputs[rank]) for rank in range(2)])
    assert [[part[0].item() for part in parts] for parts in inputs] == [[0.0, 10.0], [1.0, 11.0]]
    whole = [torch.zeros(4) for _ in range(2)]
    data.all_gather_single([Share([whole[rank]], [inputs[rank][0]]) for rank in range(2)])
    assert [part.tolist() for part in whole] == [[0.0, 0.0, 1.0, 1.0]] * 2


def test_parts_that_do_not_fit_are_refused_by_rank() -> None:
    """If this fails, the reader does not learn whose tensor has the wrong size."""
    outputs, inputs = [torch.zeros(2)] * 2, [torch.zeros(2), torch.zeros(3)]
    with pytest.raises(data.UnequalError, match="from rank 0 of the group to rank 1"):
        data.all_to_all([Share(outputs, inputs), Share(outputs, outputs)])
    with pytest.raises(data.UnequalError, match=r"float64\[2\] does not fit into float32\[2\]$"):
        data.gather(0, [Share(outputs, outputs[:1]), Share([], [torch.zeros(2, dtype=torch.float64)])])


def test_a_world_of_one_rank() -> None:
    """If this fails, a test that is tried with one rank fails in the library."""
    part, whole, listed = torch.zeros(2), torch.zeros(2), [torch.zeros(2)]
    mine = torch.tensor([1.0, 2.0])
    data.all_reduce("SUM", [Share([mine], [mine])])
    data.reduce_scatter("AVG", [Share([part], [mine])])
    data.reduce_scatter_single("MAX", [Share([part], [mine])])
    data.all_gather([Share(listed, [mine])])
    data.all_gather_single([Share([whole], [mine])])
    data.broadcast(0, [Share([mine], [mine])])
    data.all_to_all([Share([part], [mine])])
    assert [tensor.tolist() for tensor in (mine, part, whole, listed[0])] == [[1.0, 2.0]] * 4


@pytest.mark.parametrize("count", [2, 30_000])
def test_ranks_may_differ_in_shapes_and_devices(count: int) -> None:
    """If this fails, a rank with a matrix cannot reduce with one that has the same numbers in a row or on a GPU."""
    matrix, row = torch.ones(2, count), torch.ones(2 * count)
    data.all_reduce("PRODUCT" if count == 2 else "BOR", [Share([one], [one]) for one in (matrix.long(), row.long())])
    results = [matrix.long() * 2, row.long() * 2]
    data.all_reduce("SUM", [Share([result], [result]) for result in results])
    assert [tuple(result.shape) for result in results] == [(2, count), (2 * count,)]
    assert all(bool((result == 4).all()) for result in results)
    # A rank on another device: "meta" has no values. And a rank that made its buffer in inference mode.
    with torch.inference_mode():
        output = torch.zeros(2)
    data.copy(output, torch.ones(2))
    assert output.tolist() == [1.0, 1.0]
    for op, dtype in (("SUM", torch.float32), ("BOR", torch.int64)):
        tensors = [torch.zeros(2, dtype=dtype, device="meta"), torch.ones(2, dtype=dtype)]
        data.reduce(op, 0, [Share([tensor], [tensor]) for tensor in tensors])
        assert tensors[0].device.type == "meta"
