"""Section 1 of the contract: rules that many functions share."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from dist_testing.conformance.kit import Kit
from dist_testing.conformance.rows.calls import ARGUMENTS, DESTINATIONS, SOURCES, call, calls_with, right_call, small
from dist_testing.conformance.rows.registry import script

# They ask the handle for its rank first, which a non-member's does not have.
_ASK_FIRST = ("recv_object_list", "send", "send_object_list")
# They look at the membership before the rank argument.
_MEMBERSHIP_FIRST = ("gather", "irecv", "recv")
_WITH_RANK = (*SOURCES, *DESTINATIONS)
_WITH_OUTPUT = (
    *("all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object", "all_reduce"),
    *("all_reduce_coalesced", "all_to_all", "all_to_all_single", "broadcast", "broadcast_object_list", "gather"),
    *("gather_object", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list"),
)
# `send` refuses its own rank as the destination first.
_TAKE_TENSORS = [name for name in ARGUMENTS if "object" not in name and name not in ("all_to_all", "barrier", "send")]
_COALESCED = ("all_gather_coalesced", "all_reduce_coalesced")
_TAKE_LISTS = ("all_gather", "all_to_all", "gather", "reduce_scatter", "scatter")


def _ranks(name: str, rank: int | None, in_group: int) -> dict[str, int | None]:
    """Return both arguments that name the root or the peer of a function."""
    side = "src" if name in SOURCES else "dst"
    return {side: rank, f"group_{side}": in_group}


def _check_warns(name: str, k: Kit, run: Callable[[], Any]) -> None:
    """Check that a call by a rank that is no member warns and does nothing else."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        found = run()
    k.equal(found, -1 if name == "recv" else None, "the result")
    texts = [str(one.message) for one in caught]
    k.check(
        any("does not belong to the given group" in text and f"global rank {k.rank}" in text for text in texts),
        f"warnings: {texts}",
    )


@script("1.1", "{}/warns_non_member", each=[name for name in ARGUMENTS if name not in _ASK_FIRST])
def _warns_non_member(k: Kit, what: str) -> None:
    more: dict[str, Any] = _ranks(what, None, 0) if what in _WITH_RANK else {}
    _check_warns(what, k, lambda: right_call(k, what, group=k.dist.GroupMember.NON_GROUP_MEMBER, **more))


def _arguments(k: Kit, name: str) -> tuple[Any, ...]:
    """Return the arguments of a function, also of one whose name is deprecated."""
    old = {
        "all_gather_coalesced": ([[small(k)]], [small(k)]),
        "all_reduce_coalesced": ([small(k)],),
        "monitored_barrier": (),
    }
    return old[name] if name in old else ARGUMENTS[name](k)


@script("1.1", "{}/warns_non_member", each=(*_COALESCED, "monitored_barrier"))
def _others_warn(k: Kit, what: str) -> None:
    given = _arguments(k, what)
    _check_warns(what, k, lambda: getattr(k.dist, what)(*given, group=k.dist.GroupMember.NON_GROUP_MEMBER))


@script("1.1", "{}/changes_no_output_of_a_non_member", each=_WITH_OUTPUT)
def _changes_nothing(k: Kit, what: str) -> None:
    """What a rank that is no member passes as outputs, tensors and lists of objects, stays as it was."""
    given = _arguments(k, what)
    before = [_values(k, one) for one in given]
    more: dict[str, Any] = _ranks(what, None, 0) if what in _WITH_RANK else {}
    with warnings.catch_warnings(action="ignore"):
        getattr(k.dist, what)(*given, group=k.dist.GroupMember.NON_GROUP_MEMBER, **more)
    k.equal([_values(k, one) for one in given], before, "what the rank has passed")


def _values(k: Kit, one: Any) -> Any:
    if isinstance(one, k.torch.Tensor):
        return one.tolist()
    return [_values(k, part) for part in one] if isinstance(one, list) else one


@script("1.1", "{}/refuses_non_member", each=_ASK_FIRST)
def _refuses_non_member(k: Kit, what: str) -> None:
    with k.raises((ValueError, AttributeError), "Invalid process group|rank"):
        right_call(k, what, group=k.dist.GroupMember.NON_GROUP_MEMBER)


@script("1.2", "new_group/none_handle_is_default_group", (2,), fresh=True)
def _none_is_default(k: Kit) -> None:
    k.init()
    group = k.new_group([0], use_local_synchronization=True)
    # Since torch 2.14 the handle is the one of other groups.
    is_none = group is None or group == k.dist.GroupMember.NON_GROUP_MEMBER
    k.equal(is_none, k.rank == 1, "whether the handle is None or that of no member")


@script("1.3", "{}/order_of_checks", each=_WITH_RANK)
def _order_of_checks(k: Kit, what: str) -> None:
    """Some functions look at the rank argument first, and others at the group, which has no such rank."""
    more = {**_ranks(what, 0, 0), "group": k.dist.GroupMember.NON_GROUP_MEMBER}
    if what in _MEMBERSHIP_FIRST:
        _check_warns(what, k, lambda: right_call(k, what, **more))
    else:
        # The decorator that logs the exception may replace it by its own; row 1.13 shows that.
        with k.raises(ValueError, "both|Invalid process group"):
            right_call(k, what, **more)


@script("1.4", "broadcast/source_of_an_earlier_group", (3,))
def _earlier_group(k: Kit) -> None:
    """A rank that is no member looks its source up in the group that was made last."""
    k.new_group([0])
    last = k.new_group([1])
    if k.rank == 2:
        _check_warns("broadcast", k, lambda: k.dist.broadcast(small(k), src=1, group=last))
        with k.raises(ValueError, "not part of group|Invalid process group"):
            k.dist.broadcast(small(k), src=0, group=last)


@script("1.5", "{}/refuses_both_ranks", each=_WITH_RANK)
def _both_ranks(k: Kit, what: str) -> None:
    with k.raises(ValueError, "both"):
        right_call(k, what, **_ranks(what, 0, 0))


@script("1.5", "{}/refuses_rank_outside_group", each=_WITH_RANK)
def _outside(k: Kit, what: str) -> None:
    group = k.new_group([k.rank])
    with k.raises(ValueError, "not part of group"):
        right_call(k, what, **{"src" if what in SOURCES else "dst": 77}, group=group)


@script("1.5", "{}/needs_rank", each=("broadcast", "reduce", "send", "isend"))
def _no_root(k: Kit, what: str) -> None:
    with k.raises(ValueError, "[Mm]ust specify"):
        getattr(k.dist, what)(small(k))


@script("1.5", "{}/refuses_large_group_rank", (1, 2), each=("broadcast", "gather", "reduce", "scatter"))
def _large_group_rank(k: Kit, what: str) -> None:
    k.refused(lambda: right_call(k, what, **_ranks(what, None, k.size + 7)))


@script("1.6", "{}/refuses_other_than_tensor", each=_TAKE_TENSORS)
def _not_a_tensor(k: Kit, what: str) -> None:
    for run in calls_with(k, what, k.torch.Tensor, [1.0]):
        with k.raises(TypeError, "Invalid function argument"):
            run()


@script("1.7", "{}/refuses_other_than_list", each=_TAKE_LISTS)
def _not_a_list(k: Kit, what: str) -> None:
    for bad in ((small(k),), [1]):
        for run in calls_with(k, what, list, bad):
            with k.raises(TypeError, "Invalid function argument"):
                run()


@script("1.7", "{}/refuses_other_than_list", each=_COALESCED)
def _not_lists(k: Kit, what: str) -> None:
    right = _arguments(k, what)
    for place in range(len(right)):
        for bad in (1, [1]):
            with k.raises(TypeError, "Invalid function argument"), warnings.catch_warnings(action="ignore"):
                getattr(k.dist, what)(*right[:place], bad, *right[place + 1 :])


@script("1.8", "{}/refuses_mixed_dtypes", each=_TAKE_LISTS)
def _mixed_dtypes(k: Kit, what: str) -> None:
    for run in calls_with(k, what, list, [k.tensor(1, 2, dtype="int64")]):
        with k.raises(ValueError, "different dtypes"):
            run()


@script("1.8", "{}/refuses_tensors_of_two_dtypes", each=(*_COALESCED, "all_to_all_single"))
def _two_dtypes(k: Kit, what: str) -> None:
    one, other = small(k), k.tensor(1, 2, dtype="int64")
    mixed: dict[str, list[tuple[Any, ...]]] = {
        "all_gather_coalesced": [([[one, other]], [one]), ([[one]], [one, other])],
        "all_reduce_coalesced": [([one, other],)],
        "all_to_all_single": [(one, other)],
    }
    for given in mixed[what]:
        with k.raises(ValueError, "different dtypes"), warnings.catch_warnings(action="ignore"):
            getattr(k.dist, what)(*given)


@script("1.8", "all_gather/complex_and_its_float_are_one_dtype")
def _complex_pairs(k: Kit) -> None:
    def check(one: str, other: str) -> None:
        k.c10d._ensure_all_tensors_same_dtype([k.tensor(1, dtype=one)], [k.tensor(1, dtype=other)])

    check("complex64", "float32")
    check("complex128", "float64")
    with k.raises(ValueError, "different dtypes"):
        check("complex64", "float64")


@script("1.10", "supports_complex/names_the_reductions")
def _supports_complex(k: Kit) -> None:
    for name in ("SUM", "AVG", "MAX", "MIN", "PRODUCT", "BAND", "BOR", "BXOR"):
        found = k.c10d.supports_complex(getattr(k.dist.ReduceOp, name))
        k.equal(found, name in ("SUM", "AVG"), f"whether {name} is said to take complex numbers")


@script("1.10", "all_reduce_coalesced/refuses_complex_products")
def _complex_products(k: Kit) -> None:
    with k.raises(ValueError, "complex"), warnings.catch_warnings(action="ignore"):
        k.dist.all_reduce_coalesced([k.tensor(1j, dtype="complex64")], op=k.dist.ReduceOp.PRODUCT)


@script("1.11", "{}/goes_to_torch_function", each=(*_TAKE_TENSORS, *_COALESCED, "all_to_all", "send"))
def _torch_function(k: Kit, what: str) -> None:
    seen = []

    class Recorder:
        @classmethod
        def __torch_function__(cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> str:
            seen.append(function.__name__)
            return "recorded"

    mine: Any = Recorder()

    def replaced(one: Any) -> Any:
        return list(map(replaced, one)) if isinstance(one, list) else mine

    with warnings.catch_warnings(action="ignore"):
        k.equal(call(k, what, *map(replaced, _arguments(k, what))), "recorded", "the result")
    k.equal(len(seen), 1, "the number of calls that the subclass sees")


@script("1.12", "init_process_group/every_call_needs_it", fresh=True)
def _needs_init(k: Kit) -> None:
    for name in ARGUMENTS:
        with k.raises(ValueError, "has not been initialized"):
            right_call(k, name)


@script("1.13", "logging/keeps_the_exception{}", each=("", "_of_a_non_member"))
def _logged(k: Kit, what: str) -> None:
    """Also where the handle says that the rank is no member, which has neither rank nor backend to log."""
    with k.raises(TypeError, "Expecting|Invalid function argument"):
        k.dist.all_reduce("no tensor", group=k.dist.GroupMember.NON_GROUP_MEMBER if what else None)


@script("1.14", "group/three_names_of_the_default", (1, 2))
def _default_names(k: Kit) -> None:
    k.check(k.dist.group.WORLD is k.dist.GroupMember.WORLD, "group.WORLD is not GroupMember.WORLD")
    for group in (None, k.dist.group.WORLD, k.dist.GroupMember.WORLD):
        k.check_sum(group)
