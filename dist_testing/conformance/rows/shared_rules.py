"""Section 1 of the contract: rules that many functions share; and small calls of every function to show them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from dist_testing.conformance.kit import Kit
from dist_testing.conformance.rows import script

_SOURCES = ("broadcast", "broadcast_object_list", "irecv", "recv", "recv_object_list", "scatter", "scatter_object_list")
_WITH_RANK = (*_SOURCES, "gather", "gather_object", "isend", "reduce", "send", "send_object_list")


def call(k: Kit, name: str, *given: Any, **more: Any) -> Any:
    """Call a function with these arguments; a root or peer that `more` does not name is rank 0."""
    root = {_side(name): 0} if name in _WITH_RANK else {}
    return getattr(k.dist, name)(*given, **{**root, **more})


def _side(name: str) -> str:
    return "src" if name in _SOURCES else "dst"


def _right_call(k: Kit, name: str, **more: Any) -> Any:
    """Call a function with arguments that are right in a world of one, apart from the group and other keywords."""
    return call(k, name, *_ALL_ARGUMENTS[name](k), **more)


def _small(k: Kit) -> Any:
    return k.tensor(1, 2)


def _list(k: Kit) -> Any:
    return [_small(k) for _ in range(k.size)]


def _whole(k: Kit) -> Any:
    return k.full(1, 2 * k.size)


def _on_root(k: Kit, value: Any) -> Any:
    return value if k.rank == 0 else None


# Function to its arguments, without root or peer.
ARGUMENTS: dict[str, Callable[[Kit], tuple[Any, ...]]] = {
    "all_gather": lambda k: (_list(k), _small(k)),
    "all_gather_into_tensor": lambda k: (_whole(k), _small(k)),
    "all_gather_object": lambda k: ([None] * k.size, 1),
    "all_reduce": lambda k: (_small(k),),
    "all_to_all": lambda k: (_list(k), _list(k)),
    "all_to_all_single": lambda k: (_whole(k), _whole(k)),
    "barrier": lambda k: (),
    "broadcast": lambda k: (_small(k),),
    "broadcast_object_list": lambda k: ([1],),
    "gather": lambda k: (_small(k), _on_root(k, _list(k))),
    "gather_object": lambda k: (1, _on_root(k, [None] * k.size)),
    "irecv": lambda k: (_small(k),),
    "isend": lambda k: (_small(k),),
    "recv": lambda k: (_small(k),),
    "recv_object_list": lambda k: ([None],),
    "reduce": lambda k: (_small(k),),
    "reduce_scatter": lambda k: (_small(k), _list(k)),
    "reduce_scatter_tensor": lambda k: (_small(k), _whole(k)),
    "scatter": lambda k: (_small(k), _on_root(k, _list(k))),
    "scatter_object_list": lambda k: ([None], _on_root(k, [1] * k.size)),
    "send": lambda k: (_small(k),),
    "send_object_list": lambda k: ([1],),
}
_COALESCED = ("all_gather_coalesced", "all_reduce_coalesced")
# The same with functions that are deprecated, or that not every backend has.
_ALL_ARGUMENTS: dict[str, Callable[[Kit], tuple[Any, ...]]] = {
    **ARGUMENTS,
    "all_gather_coalesced": lambda k: ([[_small(k)]], [_small(k)]),
    "all_reduce_coalesced": lambda k: ([_small(k)],),
    "monitored_barrier": lambda k: (),
}
# They ask the handle for its rank first, which a non-member's does not have.
_ASK_FIRST = ("recv_object_list", "send", "send_object_list")
# They look at the membership before the rank argument.
_MEMBERSHIP_FIRST = ("gather", "irecv", "recv")
_WITHOUT_OUTPUT = ("barrier", "irecv", "isend", "monitored_barrier", "recv", *_ASK_FIRST)
# `send` refuses its own rank as the destination first.
_TAKE_TENSORS = [name for name in ARGUMENTS if "object" not in name and name not in ("all_to_all", "barrier", "send")]
_TAKE_LISTS = ("all_gather", "all_to_all", "gather", "reduce_scatter", "scatter")


def _calls_with(k: Kit, name: str, kind: type, value: Any) -> Iterator[Callable[[], Any]]:
    """Yield a call of a function for each argument of a type: with this value, the others right in a world of one."""
    right = _ALL_ARGUMENTS[name](k)
    for place, one in enumerate(right):
        if isinstance(one, kind):
            yield partial(call, k, name, *right[:place], value, *right[place + 1 :])


def _ranks(name: str, rank: int | None, in_group: int) -> dict[str, Any]:
    """Return both arguments that name the root or the peer of a function; nothing for a function without one."""
    return {_side(name): rank, f"group_{_side(name)}": in_group} if name in _WITH_RANK else {}


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


@script("1.1", "{}/warns_non_member", each=[name for name in _ALL_ARGUMENTS if name not in _ASK_FIRST])
def _warns_non_member(k: Kit, what: str) -> None:
    more = _ranks(what, None, 0)
    _check_warns(what, k, lambda: _right_call(k, what, group=k.dist.GroupMember.NON_GROUP_MEMBER, **more))


@script(
    "1.1",
    "{}/changes_no_output_of_a_non_member",
    each=[name for name in _ALL_ARGUMENTS if name not in _WITHOUT_OUTPUT],
)
def _changes_nothing(k: Kit, what: str) -> None:
    """What a rank that is no member passes as outputs, tensors and lists of objects, stays as it was."""
    given = _ALL_ARGUMENTS[what](k)
    before = [_values(k, one) for one in given]
    call(k, what, *given, group=k.dist.GroupMember.NON_GROUP_MEMBER, **_ranks(what, None, 0))
    k.equal([_values(k, one) for one in given], before, "what the rank has passed")


def _values(k: Kit, one: Any) -> Any:
    if isinstance(one, k.torch.Tensor):
        return one.tolist()
    return [_values(k, part) for part in one] if isinstance(one, list) else one


@script("1.1", "{}/refuses_non_member", each=_ASK_FIRST)
def _refuses_non_member(k: Kit, what: str) -> None:
    with k.raises((ValueError, AttributeError), "Invalid process group|rank"):
        _right_call(k, what, group=k.dist.GroupMember.NON_GROUP_MEMBER)


@script("1.2", "new_group/none_handle_is_default_group", (2,), init=True)
def _none_is_default(k: Kit) -> None:
    group = k.new_group([0], use_local_synchronization=True)
    # Since torch 2.14 the handle is the one of other groups.
    is_none = group is None or group == k.dist.GroupMember.NON_GROUP_MEMBER
    k.equal(is_none, k.rank == 1, "whether the handle is None or that of no member")


@script("1.3", "{}/order_of_checks", each=_WITH_RANK)
def _order_of_checks(k: Kit, what: str) -> None:
    """Some functions look at the rank argument first, and others at the group, which has no such rank."""
    more = {**_ranks(what, 0, 0), "group": k.dist.GroupMember.NON_GROUP_MEMBER}
    if what in _MEMBERSHIP_FIRST:
        _check_warns(what, k, lambda: _right_call(k, what, **more))
    else:
        # The decorator that logs the exception may replace it by its own; row 1.13 shows that.
        with k.raises(ValueError, "both|Invalid process group"):
            _right_call(k, what, **more)


@script("1.4", "broadcast/source_of_an_earlier_group", (3,))
def _earlier_group(k: Kit) -> None:
    """A rank that is no member looks its source up in the group that was made last."""
    k.new_group([0])
    last = k.new_group([1])
    if k.rank == 2:
        _check_warns("broadcast", k, lambda: k.dist.broadcast(_small(k), src=1, group=last))
        with k.raises(ValueError, "not part of group|Invalid process group"):
            k.dist.broadcast(_small(k), src=0, group=last)


@script("1.5", "{}/refuses_both_ranks", each=_WITH_RANK)
@script("1.5", "{}/refuses_rank_outside_group", each=_WITH_RANK)
def _wrong_ranks(k: Kit, what: str) -> None:
    if k.cell.variant == "refuses_both_ranks":
        pattern, more = "both", _ranks(what, 0, 0)
    else:
        pattern, more = "not part of group", {_side(what): 77, "group": k.new_group([k.rank])}
    with k.raises(ValueError, pattern):
        _right_call(k, what, **more)


@script("1.5", "{}/needs_rank", each=("broadcast", "reduce", "send", "isend"))
def _no_root(k: Kit, what: str) -> None:
    with k.raises(ValueError, "[Mm]ust specify"):
        getattr(k.dist, what)(_small(k))


@script("1.5", "{}/refuses_large_group_rank", (1, 2), each=("broadcast", "gather", "reduce", "scatter"))
def _large_group_rank(k: Kit, what: str) -> None:
    k.refused(lambda: _right_call(k, what, **_ranks(what, None, k.size + 7)))


@script("1.6", "{}/refuses_other_than_tensor", each=_TAKE_TENSORS)
@script("1.7", "{}/refuses_other_than_list", each=(*_TAKE_LISTS, *_COALESCED))
def _other_types(k: Kit, what: str) -> None:
    is_list = k.cell.variant == "refuses_other_than_list"
    for bad in (1, (_small(k),), [1]) if is_list else ([1.0],):
        for run in _calls_with(k, what, list if is_list else k.torch.Tensor, bad):
            with k.raises(TypeError, "Invalid function argument"):
                run()


@script("1.8", "{}/refuses_mixed_dtypes", each=_TAKE_LISTS)
def _mixed_dtypes(k: Kit, what: str) -> None:
    for run in _calls_with(k, what, list, [k.tensor(1, 2, dtype="int64")]):
        with k.raises(ValueError, "different dtypes"):
            run()


@script("1.8", "{}/refuses_tensors_of_two_dtypes", each=(*_COALESCED, "all_to_all_single"))
def _two_dtypes(k: Kit, what: str) -> None:
    one, other = _small(k), k.tensor(1, 2, dtype="int64")
    mixed: dict[str, list[tuple[Any, ...]]] = {
        "all_gather_coalesced": [([[one, other]], [one]), ([[one]], [one, other])],
        "all_reduce_coalesced": [([one, other],)],
        "all_to_all_single": [(one, other)],
    }
    for given in mixed[what]:
        with k.raises(ValueError, "different dtypes"):
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
    with k.raises(ValueError, "complex"):
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

    k.equal(call(k, what, *map(replaced, _ALL_ARGUMENTS[what](k))), "recorded", "the result")
    k.equal(len(seen), 1, "the number of calls that the subclass sees")


@script("1.12", "init_process_group/every_call_needs_it", fresh=True)
def _needs_init(k: Kit) -> None:
    for name in ARGUMENTS:
        with k.raises(ValueError, "has not been initialized"):
            _right_call(k, name)


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
