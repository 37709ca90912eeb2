"""The parts of the group of threads that wait for no rank: arguments, moves, turns, and calls that belong together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._C._distributed_c10d import _make_nccl_premul_sum

from dist_testing.threaded import data
from dist_testing.threaded.arguments import limit_of, reduction_of, text_of
from dist_testing.threaded.data import Share
from dist_testing.threaded.operation import ANY_RANK, Call, GroupLabel, Transfer
from dist_testing.threaded.turns import Turns

_FLOAT, _COMPLEX, _BOOL, _INT = (
    torch.ones(2, dtype=dtype) for dtype in (torch.float32, torch.complex64, torch.bool, torch.int64)
)
_SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=50)


def test_texts_and_limits_of_calls() -> None:
    """If this fails, an error of a world of 64 ranks fills the screen, or the user's limit is ignored."""
    assert text_of([_FLOAT] * 4).count("float32[2]") == 4
    assert text_of([_FLOAT, *[_INT] * 4]) == "float32[2] and 4 more"
    options = dist.AllreduceOptions()
    assert limit_of(None) is limit_of(options) is None
    options.timeout = timedelta(seconds=3)
    assert limit_of(options) == 3.0
    assert limit_of(options, timedelta(milliseconds=1500)) == 1.5
    assert limit_of(options, timedelta()) is limit_of(None, timedelta(seconds=-1)) is None


@pytest.mark.parametrize("name", ["SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "AVG"])
def test_operations_are_defined_for_the_dtypes_of_torchs_documentation(name: str) -> None:
    """If this fails, a test passes with threads that every backend of processes refuses, or the reverse."""
    refused = {"M": [_COMPLEX], "B": [_FLOAT, _COMPLEX], "A": [_BOOL]}.get(name[0], [])
    operation = getattr(dist.ReduceOp, name)
    for tensor in (_FLOAT, _COMPLEX, _BOOL, _INT):
        if any(tensor is one for one in refused):
            with pytest.raises(ValueError, match=f"ReduceOp.{name} is not defined for {str(tensor.dtype)[6:]} tensors"):
                reduction_of(None, operation, [_INT, tensor])
        else:
            assert reduction_of(None, operation, [tensor]) == (name, None)


def test_where_the_operation_comes_from() -> None:
    """If this fails, a maximum is a sum."""
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
    assert reduction_of(None, None, [_INT]) == ("SUM", None)
    assert reduction_of(options, None, [_INT]) == ("MAX", None)
    assert reduction_of(dist.ReduceOp.BOR, None, [_INT]) == ("BOR", None)
    assert reduction_of(options, dist.ReduceOp.MIN, [_INT]) == ("MIN", None)
    assert reduction_of(_make_nccl_premul_sum(0.5), None, [_FLOAT]) == ("PREMUL_SUM", 0.5)
    with pytest.raises(ValueError, match="is not defined for bool"):
        reduction_of(_make_nccl_premul_sum(2.0), None, [_BOOL])


def test_a_move_does_not_change_what_the_last_rank_records() -> None:
    """If this fails, gradients flow through a collective, or a rank whose collective failed trains without them."""
    source, target = torch.ones(2, requires_grad=True), torch.zeros(2)
    grads = []

    def move(output: Tensor, value: Tensor) -> None:
        grads.append(torch.is_grad_enabled())
        data.copy(output, value)

    data.run_move(move, target, source, tensors=[])
    assert target.tolist() == [1.0, 1.0]
    assert target.grad_fn is None
    with torch.no_grad():
        data.run_move(move, target, source, tensors=[])
        assert not torch.is_grad_enabled()
    assert grads == [False] * 2
    with pytest.raises(data.UnequalError, match=r"float32\[3\] does not fit into float32\[2\]"):
        data.run_move(data.copy, torch.zeros(2), torch.ones(3), tensors=[])
    assert torch.is_grad_enabled()


def test_a_move_waits_for_the_streams_of_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, another thread reads a GPU's memory before the result is there."""
    device = torch.device("cuda", 1)
    tensors: list[Any] = [torch.ones(1), torch.ones(1, device="meta"), *[SimpleNamespace(device=device)] * 2]
    assert data.accelerators(tensors) == {device}
    waited: list[object] = []

    def stream_of(*where: object) -> SimpleNamespace:
        return SimpleNamespace(synchronize=lambda: waited.extend(where))

    def module_of(kind: str) -> SimpleNamespace:
        return SimpleNamespace(current_stream=lambda of: stream_of(kind, of))

    monkeypatch.setattr(torch, "get_device_module", module_of)
    data.run_move(data.meet_only, [], tensors=tensors)
    assert waited == ["cuda", device]


def test_ranks_may_differ_in_shapes_and_devices() -> None:
    """If this fails, a rank with a matrix cannot reduce with one that has the same numbers in a row or on a GPU."""
    results = [torch.full((2, 3), 2), torch.full((6,), 2)]
    data.all_reduce("SUM", [Share([result], [result]) for result in results])
    assert [tuple(result.shape) for result in results] == [(2, 3), (6,)]
    assert all(bool((result == 4).all()) for result in results)
    # "meta" has no values.
    tensors = [torch.zeros(2, device="meta"), torch.ones(2)]
    data.reduce("SUM", 0, [Share([tensor], [tensor]) for tensor in tensors])
    assert tensors[0].device.type == "meta"


def _turns(size: int) -> tuple[Turns, Callable[[int], None], list[int]]:
    """Return turns, a function that makes a rank ready, and the ranks that have got a turn, in their order."""
    turns, had = Turns(size), list[int]()

    class Gate:
        def __init__(self, rank: int) -> None:
            self._rank = rank

        def release(self) -> None:
            had.append(self._rank)

    def add(rank: int) -> None:
        turns.add(rank, Gate(rank))  # type: ignore[arg-type]  # only a lock that shows its release

    return turns, add, had


@_SETTINGS
@given(st.permutations(range(4)))
def test_the_first_turn_comes_when_all_are_ready(order: list[int]) -> None:
    """If this fails, the interleaving depends on how fast the threads start."""
    turns, add, had = _turns(4)
    for rank in order[:-1]:
        add(rank)
        assert had == []
    add(order[-1])
    assert had == [0]
    for _ in range(3):
        turns.pass_on()
    assert had == [0, 1, 2, 3]


@_SETTINGS
@given(st.lists(st.integers(0, 2), max_size=30))
def test_the_turn_goes_round_from_its_holder(steps: list[int]) -> None:
    """If this fails, one rank gets every turn while others wait, or two ranks run at the same time."""
    turns, add, had = _turns(3)
    for rank in range(3):
        add(rank)
    ready = {1, 2}
    for rank in steps:
        if rank not in ready and had[-1] != rank:
            add(rank)
            ready.add(rank)
            continue
        expected = next((after for step in (1, 2, 3) if (after := (had[-1] + step) % 3) in ready), None)
        if expected is None:
            continue
        turns.pass_on()
        assert had[-1] == expected
        ready.remove(expected)


def test_a_rank_that_can_continue_does_not_wait_in_vain() -> None:
    """If this fails, a world in which all ranks waited, that is over, or that has no order, never goes on."""
    turns, add, had = _turns(2)
    add(0)
    add(1)
    turns.pass_on()
    turns.pass_on()
    add(1)
    assert had == [0, 1, 1], "the turn was free"
    add(0)
    assert had == [0, 1, 1], "rank 1 has the turn"
    turns.stop()
    assert had[3:] == [0]
    turns.stop()
    add(1)
    assert had[3:] == [0, 1], "without turns, at once"
    gate = threading.Lock()
    gate.acquire()
    Turns(2, are_on=False).add(0, gate)
    assert not gate.locked()


def _transfer(rank: int, peer: int, *, is_send: bool, tag: int = 0) -> Transfer:
    label = GroupLabel("the default group", (4, 5, 6))
    call = Call("send" if is_send else "recv", (), lambda: "float32[2]", "test_f.py:6 in test_f")
    return Transfer(label, rank, peer, tag, _FLOAT, call, is_send)


def test_which_send_meets_which_receive() -> None:
    """If this fails, a rank receives the message of another one."""
    send = _transfer(0, 1, is_send=True)
    receives = {
        "from its rank": _transfer(1, 0, is_send=False),
        "from any rank": _transfer(1, ANY_RANK, is_send=False),
        "from another rank": _transfer(1, 2, is_send=False),
        "on another rank": _transfer(2, 0, is_send=False),
        "of another tag": _transfer(1, 0, is_send=False, tag=1),
        "no receive": _transfer(1, 0, is_send=True),
    }
    met = {name for name, other in receives.items() if send.meets(other)}
    assert met == {name for name, other in receives.items() if other.meets(send)} == {"from its rank", "from any rank"}


def test_texts_have_ranks_of_the_world() -> None:
    """If this fails, the report of a hang in a sub-group names the wrong rank or the wrong half."""
    assert _transfer(0, 1, is_send=True).missing() == "rank 5 to receive"
    assert _transfer(1, 0, is_send=False).missing() == "rank 4 to send"
    assert _transfer(1, ANY_RANK, is_send=False).missing() == "any rank to send"
    lost = _transfer(0, 2, is_send=True).lost().text
    assert lost.startswith("Rank 6 has ended, or has destroyed the default group; rank 4 waits for it in send(")
    assert "makes one receive too few" in lost
    assert "makes one send too few" in _transfer(1, 0, is_send=False).lost().text
