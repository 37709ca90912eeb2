"""The parts of the group of threads that wait for no rank: arguments, turns, and the calls that belong together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import _make_nccl_premul_sum

from dist_testing.threaded.arguments import (
    check_pairs,
    check_same_size,
    limit_of,
    listed,
    reduction_of,
    single,
    sizes_of,
    text_of,
)
from dist_testing.threaded.operation import ANY_RANK, Call, Collective, GroupLabel, Transfer
from dist_testing.threaded.turns import Turns

_FLOAT, _COMPLEX, _BOOL, _INT = (
    torch.ones(2, dtype=dtype) for dtype in (torch.float32, torch.complex64, torch.bool, torch.int64)
)
_SETTINGS = settings(derandomize=True, database=None, deadline=None, max_examples=50)


def test_one_tensor_or_a_list_of_one() -> None:
    """If this fails, one of torch's two styles of calls gets an error."""
    assert listed(_FLOAT)[0] is _FLOAT
    assert listed([_FLOAT, _INT])[1] is _INT
    assert single(_FLOAT) is single([_FLOAT]) is _FLOAT
    for count in (0, 2):
        with pytest.raises(ValueError, match=f"{count} tensors"):
            single([_FLOAT] * count)


def test_outputs_that_do_not_fit_are_refused() -> None:
    """If this fails, a result is cut off, or written with another meaning."""
    check_pairs([1], [2])
    with pytest.raises(ValueError, match="2 outputs and 1 inputs"):
        check_pairs([1, 2], [3])
    check_same_size(torch.ones(2, 3), torch.ones(6))
    for output in (torch.ones(2, 2), torch.ones(2, 3, dtype=torch.int32)):
        with pytest.raises(ValueError, match=r"float32\[2, 3\] does not fit into "):
            check_same_size(torch.ones(2, 3), output)


def test_tensors_as_text_and_as_signature() -> None:
    """If this fails, an error of a world of 64 ranks fills the screen, or calls that differ are not compared."""
    assert text_of([_FLOAT, _INT]) == "float32[2], int64[2]"
    assert text_of([_FLOAT] * 4).count("float32[2]") == 4
    assert text_of([_FLOAT, *[_INT] * 4]) == "float32[2] and 4 more"
    assert sizes_of([_FLOAT, torch.ones(2, 3)]) == ((torch.float32, 2), (torch.float32, 6))


def test_the_limit_of_a_call() -> None:
    """If this fails, a call ends at once, or the user's limit is ignored."""
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
            with pytest.raises(ValueError, match=f"ReduceOp.{name} is not defined for") as caught:
                reduction_of(None, operation, [_INT, tensor])
            assert f"for {str(tensor.dtype)[6:]} tensors.\n" in str(caught.value)
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
    for operation, tensors, said in (
        (options, [], "no tensors"),
        (None, [_FLOAT.to_sparse()], "layout torch.sparse_coo cannot be reduced"),
        # Gradients would be scaled by another factor than the one that was asked for.
        (dist.ReduceOp.PREMUL_SUM, [_FLOAT], "PREMUL_SUM without a factor"),
        (_make_nccl_premul_sum(2.0), [_BOOL], "is not defined for bool"),
    ):
        with pytest.raises(ValueError, match=said):
            reduction_of(operation, None, tensors)


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


def test_a_free_turn_is_taken_at_once() -> None:
    """If this fails, a world in which all ranks waited never goes on."""
    turns, add, had = _turns(2)
    add(0)
    add(1)
    turns.pass_on()
    turns.pass_on()
    assert had == [0, 1]
    add(1)
    assert had == [0, 1, 1]
    add(0)
    assert had == [0, 1, 1], "rank 1 has the turn"


def test_without_turns_a_rank_continues_as_soon_as_it_can() -> None:
    """If this fails, the ranks of a world that is over, or of one without an order, wait for turns that never come."""
    turns, add, had = _turns(3)
    for rank in (2, 1):
        add(rank)
    assert had == []
    turns.stop()
    assert sorted(had) == [1, 2]
    turns.stop()
    assert sorted(had) == [1, 2]
    add(0)
    add(1)
    assert had[2:] == [0, 1]
    # A rank waits by taking the gate, so its turn must unlock it.
    for turns in (Turns(1), Turns(2, are_on=False)):
        gate = threading.Lock()
        gate.acquire()
        turns.add(0, gate)
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


def test_what_a_transfer_waits_for() -> None:
    """If this fails, the report of a hang names the wrong rank or the wrong half. Texts have ranks of the world."""
    assert _transfer(0, 1, is_send=True).missing() == "rank 5 to receive"
    assert _transfer(1, 0, is_send=False).missing() == "rank 4 to send"
    assert _transfer(1, ANY_RANK, is_send=False).missing() == "any rank to send"
    lost = _transfer(0, 2, is_send=True).lost().text
    assert lost.startswith("Rank 6 has ended, or has destroyed the default group; rank 4 waits for it in send(")
    assert "makes one receive too few" in lost
    assert "makes one send too few" in _transfer(1, 0, is_send=False).lost().text
    mismatch = _transfer(0, 1, is_send=True).mismatch(_transfer(1, 0, is_send=False), "two sizes").text
    assert "do not fit together: two sizes.\n  rank 4: send(" in mismatch
    assert "\n  rank 5: recv(" in mismatch


def test_a_collective_knows_who_has_called() -> None:
    """If this fails, the report of a hang or a mismatch names ranks that have come. Texts have ranks of the world."""
    call = Call("all_reduce", (), lambda: "SUM, float32[2]", "test_f.py:6 in test_f")
    collective = Collective(GroupLabel("group '1' of ranks 4, 5, 6, 7", (4, 5, 6, 7)), 3, ())
    assert collective.missing() == "ranks 4, 5, 6, 7"
    assert collective.title() == "collective #4 of group '1' of ranks 4, 5, 6, 7"
    collective.calls[0] = collective.calls[2] = call
    collective.calls[1] = Call("barrier", (), str, "test_f.py:7 in test_f")
    assert collective.missing() == "rank 7"
    calls = (
        "  ranks 4, 6: all_reduce(SUM, float32[2]) at test_f.py:6 in test_f\n"
        "  rank 5: barrier() at test_f.py:7 in test_f\n"
    )
    first, rest = collective.lost(3).text.split("\n", 1)
    assert first.startswith("Collective #4 of group '1' of ranks 4, 5, 6, 7 can never complete: rank 7 has ended")
    assert rest.startswith(f"{calls}  no call yet: rank 7\nMost likely that rank makes fewer calls")
    collective.calls[3] = call
    first, rest = collective.mismatch("two operations").text.split("\n", 1)
    sides = "ranks 4, 6, 7 all_reduce(SUM, float32[2]); rank 5 barrier()"
    assert first.endswith(f"of ranks 4, 5, 6, 7: two operations: {sides}.")
    assert rest.startswith(calls.replace("4, 6", "4, 6, 7"))
    assert "no call yet" not in rest
