"""Section 1 of the contract: rules that many functions share."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from dist_testing.conformance.rows.calls import CALLS, DESTINATIONS, SOURCES, TENSOR_CALLS, small
from dist_testing.conformance.rows.registry import script

if TYPE_CHECKING:
    from dist_testing.conformance.kit import Kit

# They ask the handle for its rank first, which a non-member's does not have.
_ASK_FIRST = ("recv_object_list", "send", "send_object_list")
# They look at the rank argument before the membership.
_RANK_FIRST = (
    "broadcast",
    "broadcast_object_list",
    "gather_object",
    "isend",
    "recv_object_list",
    "reduce",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
)


def _warns_non_member(name: str, k: Kit) -> None:
    """A handle of a non-member: a warning, no result, nothing sent."""
    group = k.dist.GroupMember.NON_GROUP_MEMBER
    more: dict[str, Any] = {"group_src": 0} if name in SOURCES else {"group_dst": 0} if name in DESTINATIONS else {}
    more |= {key.removeprefix("group_"): None for key in more}
    _check_warns(name, k, lambda: CALLS[name](k, group=group, **more))


def _check_warns(name: str, k: Kit, call: Callable[[], Any]) -> None:
    """Check that a call by a rank that is no member warns and does nothing else."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = call()
    k.equal(found, -1 if name == "recv" else None, "the result")
    texts = [str(one.message) for one in caught]
    k.check(
        any("does not belong to the given group" in text and f"global rank {k.rank}" in text for text in texts),
        f"warnings: {texts}",
    )


def _refuses_non_member(name: str, k: Kit) -> None:
    """The functions that ask the handle for its rank refuse the handle of a non-member."""
    with k.raises((ValueError, AttributeError), "Invalid process group|rank"):
        CALLS[name](k, group=k.dist.GroupMember.NON_GROUP_MEMBER)


for _name in CALLS:
    if _name in _ASK_FIRST:
        script("1.1", f"{_name}/refuses_non_member")(partial(_refuses_non_member, _name))
    else:
        script("1.1", f"{_name}/warns_non_member")(partial(_warns_non_member, _name))


@script("1.2", "new_group/none_handle_is_default_group", (2,))
def _none_is_default(k: Kit) -> None:
    """A group that synchronises only its members gives None to others, and None is the default group."""
    group = k.new_group([0], use_local_synchronization=True)
    k.equal(group is None, k.rank == 1, "whether the handle is None")


def _order_of_checks(name: str, k: Kit) -> None:
    """Some functions look at the rank argument first, and others at the group, which has no such rank."""
    side = "src" if name in SOURCES else "dst"
    wrong = {side: 0, f"group_{side}": 0}
    group = k.dist.GroupMember.NON_GROUP_MEMBER
    if name in _RANK_FIRST:
        # The decorator that logs the exception may replace it by its own; row 1.13 shows that.
        with k.raises(ValueError, "both|Invalid process group"):
            CALLS[name](k, group=group, **wrong)
    else:
        _check_warns(name, k, lambda: CALLS[name](k, group=group, **wrong))


for _name in (*SOURCES, *DESTINATIONS):
    script("1.3", f"{_name}/order_of_checks")(partial(_order_of_checks, _name))


@script("1.4", "broadcast/source_of_an_earlier_group", (3,))
def _earlier_group(k: Kit) -> None:
    """A rank that is no member looks its source up in the group that was made last."""
    k.new_group([0])
    last = k.new_group([1])
    if k.rank == 2:
        _check_warns("broadcast", k, lambda: k.dist.broadcast(small(k), src=1, group=last))
        with k.raises(ValueError, "not part of group|Invalid process group"):
            k.dist.broadcast(small(k), src=0, group=last)


def _both_ranks(name: str, k: Kit) -> None:
    side = "src" if name in SOURCES else "dst"
    with k.raises(ValueError, "[Cc]an't specify both|both"):
        CALLS[name](k, **{side: 0, f"group_{side}": 0})


def _outside(name: str, k: Kit) -> None:
    side = "src" if name in SOURCES else "dst"
    group = k.new_group([k.rank])
    with k.raises(ValueError, "not part of group"):
        CALLS[name](k, **{side: 77}, group=group)


for _name in (*SOURCES, *DESTINATIONS):
    script("1.5", f"{_name}/refuses_both_ranks")(partial(_both_ranks, _name))
    script("1.5", f"{_name}/refuses_rank_outside_group")(partial(_outside, _name))


def _no_root(name: str, k: Kit) -> None:
    call: Any = {
        "broadcast": lambda: k.dist.broadcast(small(k)),
        "reduce": lambda: k.dist.reduce(small(k)),
        "send": lambda: k.dist.send(small(k)),
        "isend": lambda: k.dist.isend(small(k)),
    }[name]
    with k.raises(ValueError, "[Mm]ust specify"):
        call()


for _name in ("broadcast", "reduce", "send", "isend"):
    script("1.5", f"{_name}/needs_rank")(partial(_no_root, _name))


def _large_group_rank(name: str, k: Kit) -> None:
    """A rank in the group that the group does not have is the backend's to refuse."""
    side = "src" if name in SOURCES else "dst"
    k.refused(lambda: CALLS[name](k, **{side: None, f"group_{side}": k.size + 7}))


for _name in ("broadcast", "gather", "reduce", "scatter"):
    script("1.5", f"{_name}/refuses_large_group_rank", (1, 2))(partial(_large_group_rank, _name))


def _not_a_tensor(name: str, k: Kit) -> None:
    with k.raises(TypeError, "Tensor"):
        TENSOR_CALLS[name](k, [1.0])


for _name in TENSOR_CALLS:
    if _name == "send":
        # It refuses its own rank as the destination first.
        continue
    script("1.6", f"{_name}/refuses_other_than_tensor")(partial(_not_a_tensor, _name))


_LIST_CALLS: dict[str, Any] = {
    "all_gather": lambda k, x: k.dist.all_gather(x, small(k)),
    "all_to_all": lambda k, x: k.dist.all_to_all(x, [small(k)]),
    "gather": lambda k, x: k.dist.gather(small(k), x, dst=0),
    "reduce_scatter": lambda k, x: k.dist.reduce_scatter(small(k), x),
    "scatter": lambda k, x: k.dist.scatter(small(k), x, src=0),
}


def _not_a_list(name: str, k: Kit) -> None:
    with k.raises(TypeError, "[Ll]ist"):
        _LIST_CALLS[name](k, (small(k),))
    with k.raises(TypeError, "Tensor"):
        _LIST_CALLS[name](k, [1])


def _mixed_dtypes(name: str, k: Kit) -> None:
    with k.raises(ValueError, "different dtypes"):
        _LIST_CALLS[name](k, [k.tensor(1, 2, dtype="int64")])


for _name in _LIST_CALLS:
    script("1.7", f"{_name}/refuses_other_than_list")(partial(_not_a_list, _name))
    script("1.8", f"{_name}/refuses_mixed_dtypes")(partial(_mixed_dtypes, _name))


@script("1.8", "all_gather/complex_and_its_float_are_one_dtype")
def _complex_pairs(k: Kit) -> None:
    """complex64 and float32 count as the same dtype, complex64 and float64 do not."""
    k.c10d._ensure_all_tensors_same_dtype([k.tensor(1, dtype="complex64")], [k.tensor(1, dtype="float32")])
    k.c10d._ensure_all_tensors_same_dtype([k.tensor(1, dtype="complex128")], [k.tensor(1, dtype="float64")])
    with k.raises(ValueError, "different dtypes"):
        k.c10d._ensure_all_tensors_same_dtype([k.tensor(1, dtype="complex64")], [k.tensor(1, dtype="float64")])


@script("1.10", "supports_complex/names_the_reductions")
def _supports_complex(k: Kit) -> None:
    """SUM, AVG and PREMUL_SUM take complex numbers, the others do not."""
    op = k.dist.ReduceOp
    for name in ("SUM", "AVG"):
        k.check(k.c10d.supports_complex(getattr(op, name)), f"{name} is said not to take complex numbers")
    for name in ("MAX", "MIN", "PRODUCT", "BAND", "BOR", "BXOR"):
        k.check(not k.c10d.supports_complex(getattr(op, name)), f"{name} is said to take complex numbers")


def _torch_function(name: str, k: Kit) -> None:
    """A tensor subclass sees the call before any check."""
    seen = []

    class Recorder:
        @classmethod
        def __torch_function__(cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> str:
            seen.append(function.__name__)
            return "recorded"

    mine: Any = Recorder()
    calls: dict[str, Any] = {
        "all_gather": lambda: k.dist.all_gather([mine], mine),
        "all_gather_into_tensor": lambda: k.dist.all_gather_into_tensor(mine, mine),
        "all_reduce": lambda: k.dist.all_reduce(mine),
        "all_to_all_single": lambda: k.dist.all_to_all_single(mine, mine),
        "reduce_scatter_tensor": lambda: k.dist.reduce_scatter_tensor(mine, mine),
    }
    k.equal(calls[name](), "recorded", "the result")
    k.equal(len(seen), 1, "the number of calls that the subclass sees")


for _name in ("all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all_single", "reduce_scatter_tensor"):
    script("1.11", f"{_name}/goes_to_torch_function")(partial(_torch_function, _name))


@script("1.12", "init_process_group/every_call_needs_it", fresh=True)
def _needs_init(k: Kit) -> None:
    """Without a default group every function with group=None says so."""
    for name, call in CALLS.items():
        try:
            call(k)
        except ValueError as error:
            k.check("has not been initialized" in str(error), f"{name}: {error}")
        else:
            k.check(False, f"{name} returned without a default group")


@script("1.13", "logging/keeps_the_exception")
def _logged(k: Kit) -> None:
    """The decorators that log an exception change neither its type nor its text."""
    with k.raises(TypeError, "Expecting|Invalid function argument"):
        k.dist.all_reduce("no tensor")


@script("1.13", "logging/keeps_the_exception_of_a_non_member")
def _logged_outside(k: Kit) -> None:
    """Also where the handle says that the rank is no member, which has neither rank nor backend to log."""
    with k.raises(TypeError, "Expecting|Invalid function argument"):
        k.dist.all_reduce("no tensor", group=k.dist.GroupMember.NON_GROUP_MEMBER)


@script("1.14", "group/three_names_of_the_default", (1, 2))
def _default_names(k: Kit) -> None:
    """None, `group.WORLD` and `GroupMember.WORLD` are one group."""
    k.check(k.dist.group.WORLD is k.dist.GroupMember.WORLD, "group.WORLD is not GroupMember.WORLD")
    for group in (None, k.dist.group.WORLD, k.dist.GroupMember.WORLD):
        tensor = k.tensor(k.rank + 1)
        k.dist.all_reduce(tensor, group=group)
        k.equal(tensor, [float(k.size * (k.size + 1) // 2)], "the sum")
