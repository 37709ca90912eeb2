"""Sections 6 and 7 of the contract: values at the edges, and the tables of the docstrings."""

from __future__ import annotations

import math
import warnings
from typing import Any

from dist_testing.conformance.kit import Kit
from dist_testing.conformance.rows import script
from dist_testing.conformance.rows.shared_rules import call


def _reduced(k: Kit, tensor: Any, op: str = "SUM") -> Any:
    """Return the tensor after an all_reduce by all ranks."""
    k.dist.all_reduce(tensor, op=getattr(k.dist.ReduceOp, op))
    return tensor


@script("6", "all_reduce/nan_through_{}", (2, 3), each=("sum", "min", "max"))
def _nan(k: Kit, what: str) -> None:
    """A NaN of one rank arrives on all, and so does an infinity."""
    first = [math.nan, math.inf, -math.inf] if k.rank == k.size - 1 else [1.0, 2.0, 3.0]
    values = _reduced(k, k.tensor(*first), what.upper()).tolist()
    k.check(math.isnan(values[0]), f"a NaN became {values[0]}")
    if what == "sum":
        k.equal(values[1:], [math.inf, -math.inf], "the infinities")


@script("6", "all_reduce/integers_wrap", (2, 3))
def _wraps(k: Kit) -> None:
    tensor = _reduced(k, k.tensor(100, -100, dtype="int8"))
    wrapped = [((sign * 100 * k.size + 128) % 256) - 128 for sign in (1, -1)]
    k.equal(tensor, k.torch.tensor(wrapped, dtype=k.torch.int8), "the wrapped sum")


@script("6.1", "all_reduce/same_bits_on_all_ranks", (3, 5, 7))
def _same_bits(k: Kit) -> None:
    """Rounding differs by order, and all ranks get the same bits."""
    generator = k.torch.Generator().manual_seed(k.rank)
    tensor = _reduced(k, (k.torch.rand(1001, generator=generator) * 1e3).to(k.device))
    bits = tensor.cpu().view(k.torch.int32).tolist()
    k.world.store.set(k.key(f"bits/{k.rank}"), str(hash(tuple(bits))))
    k.meet()
    digests = {k.world.store.get(k.key(f"bits/{rank}")).decode() for rank in range(k.size)}
    k.equal(len(digests), 1, "the number of different results")


@script("6", "all_reduce/average_of_integers_is_truncated", (2, 3))
@script("6", "all_reduce/average_is_divided_by_ranks", (1, 3))
@script("6", "all_reduce/average_of_many", (2, 3))
def _average(k: Kit) -> None:
    if k.cell.variant == "average_of_integers_is_truncated":
        value, average = k.tensor(*([1, -1] if k.rank == 0 else [2, -2]), dtype="int32"), (2 * k.size - 1) // k.size
        k.equal(_reduced(k, value, "AVG"), [average, -average], "the average")
    elif k.cell.variant == "average_is_divided_by_ranks":
        k.equal(_reduced(k, k.full(3 * (k.rank + 1), 5), "AVG"), [3.0 * (k.size + 1) / 2] * 5, "the average")
    else:
        # Above any threshold of a fast path.
        tensor = _reduced(k, k.full(2 * k.rank, 300_001), "AVG")
        k.check(bool((tensor == float(k.size - 1)).all()), f"the average is {tensor[0].item()}")


@script("6", "all_reduce/group_of_one_keeps_values")
def _alone(k: Kit) -> None:
    """In a world of one the result is the input, for lengths around the sizes of blocks."""
    for length in (1, 3, 5, 7, 31, 33, 127):
        expected = [float(value) for value in range(1, length + 1)]
        k.equal(_reduced(k, k.arange(length) + 1), expected, f"the result of {length} elements")


@script("6.3", "reduce/keeps_tensors_of_others", (2, 3, 4, 5))
def _keeps(k: Kit) -> None:
    """c10d leaves the tensors of ranks other than the root undefined; a backend that keeps them is easier to use."""
    tensor = k.tensor(k.rank + 1, 2)
    k.dist.reduce(tensor, dst=0)
    if k.rank:
        k.equal(tensor, [k.rank + 1.0, 2.0], "the tensor of a rank that is not the root")


@script("6.3", "reduce/premul_sum_factor", (2, 3))
def _factor(k: Kit) -> None:
    tensor = k.tensor(k.rank + 1)
    k.dist.reduce(tensor, dst=0, op=k.dist._make_nccl_premul_sum(3.0))
    if k.rank == 0:
        k.equal(tensor, [3.0 * k.size * (k.size + 1) / 2], "the sum")


_OTHER_LENGTHS = {"all_reduce": "6.1", "broadcast": "7.1", "all_gather_into_tensor": "7.1"}


@script(_OTHER_LENGTHS, "{}/other_lengths_are_refused", (2,), init=2)
def _other_sizes(k: Kit, what: str) -> None:
    """Tensors of other lengths on another rank: an error on every rank, no crash, no hang."""
    tensor = k.full(1, 4 + 3 * k.rank)
    outputs = [k.full(0, k.size * len(tensor))] if what == "all_gather_into_tensor" else []
    k.refused(lambda: call(k, what, *outputs, tensor))


_ON_THE_ROOT = {"gather": "7.5", "scatter": "7.6"}
_ON_EACH_RANK = {"all_gather": "7.2", "all_gather_into_tensor": "7.3", "all_to_all": "7.8"}
_REDUCE_SCATTER = {"reduce_scatter": "6.4", "reduce_scatter_tensor": "6.5"}


# Only the root of gather and scatter has a list, so a world of one is enough.
@script(_ON_THE_ROOT, "{}/wrong_sizes_are_refused")
@script({**_ON_EACH_RANK, **_REDUCE_SCATTER}, "{}/wrong_sizes_are_refused", (1, 2, 3))
@script("7.7", "{}/indivisible_length_is_refused", (2, 3), each=("all_to_all_single",))
def _wrong_lists(k: Kit, what: str) -> None:
    """A list of another length than the group, or a tensor of another size than the parts: an error."""
    one, wide = k.tensor(1, 2), k.full(0, 2 * k.size + 1)
    more = [k.tensor(1, 2) for _ in range(k.size + 1)]
    given: dict[str, Any] = {
        "all_gather": (more, one),
        "all_gather_into_tensor": (wide, one),
        "all_to_all": (more, more),
        "all_to_all_single": (wide, wide.clone()),
        "reduce_scatter_tensor": (one, wide),
    }
    k.refused(lambda: call(k, what, *given.get(what, (one, more))))


@script(_ON_THE_ROOT, "{}/list_on_the_root_only", (2, 3))
def _list_elsewhere(k: Kit, what: str) -> None:
    """A list is needed on the root, and refused elsewhere; an empty list passes."""
    tensor, lists = k.tensor(k.rank + 1), [k.tensor(0) for _ in range(k.size)]
    k.meet()
    with k.raises(ValueError, "must be specified" if k.rank == 0 else "must NOT be specified"):
        call(k, what, tensor, None if k.rank == 0 else lists)
    call(k, what, tensor, lists if k.rank == 0 else [])


@script("7.5", "gather/default_root_is_global_rank_0", (4,), group="part")
def _gather_default(k: Kit) -> None:
    """The default root is an error in a group without it."""
    group = k.group("part")
    if k.rank in k.ranks:
        with k.raises(ValueError, "not part of group"):
            k.dist.gather(k.tensor(1), [k.tensor(0), k.tensor(0)], group=group)


@script("7.2", "all_gather/outputs_are_views_of_one_tensor", (2, 3, 5))
def _views(k: Kit) -> None:
    whole = k.full(0, 3 * k.size)
    k.dist.all_gather(list(whole.chunk(k.size)), k.full(k.rank + 1, 3))
    k.equal(whole, [float(rank + 1) for rank in range(k.size) for _ in range(3)], "the whole")


@script("7.2", "all_gather/uneven", (2, 3))
def _uneven(k: Kit) -> None:
    """Tensors whose sizes differ by rank, if the list of each rank has these sizes.

    torch promises it for all_gather alone: its gather needs one size.
    """
    parts = [k.full(rank + 1, rank + 2) for rank in range(k.size)]
    outputs = [k.torch.zeros_like(part) for part in parts]
    k.dist.all_gather(outputs, parts[k.rank])
    for rank, part in enumerate(parts):
        k.equal(outputs[rank], part, f"the output of rank {rank}")


@script("7.6", "scatter/inputs_are_views_of_one_tensor", (2, 3, 5))
def _scatter_views(k: Kit) -> None:
    whole, output = k.arange(3 * k.size), k.full(0, 3)
    k.dist.scatter(output, list(whole.chunk(k.size)) if k.rank == 0 else None, src=0)
    k.equal(output, [3.0 * k.rank + n for n in range(3)], "the part")


@script("7.3", "all_gather_into_tensor/in_place", (2, 3))
def _in_place(k: Kit) -> None:
    """The input is a view of the output at its place."""
    whole = k.full(0, 2 * k.size)
    mine = whole[2 * k.rank : 2 * k.rank + 2]
    mine.fill_(k.rank + 1)
    k.dist.all_gather_into_tensor(whole, mine)
    k.equal(whole, [float(rank + 1) for rank in range(k.size) for _ in range(2)], "the whole")


_OLD_NAMES = {"_reduce_scatter_base": "6.6", "_all_gather_base": "7.3"}


@script({**_OLD_NAMES, "all_reduce_coalesced": "6.2", "all_gather_coalesced": "7.4"}, "{}/warns")
def _old_names(k: Kit, what: str) -> None:
    """A deprecated name warns, and gives the same result, here on a world of one."""
    output, value = k.tensor(0, 0), k.tensor(4, 5)
    given: dict[str, Any] = {"all_reduce_coalesced": ([value],), "all_gather_coalesced": ([[output]], [value])}
    with warnings.catch_warnings(record=True, action="always") as caught:
        getattr(k.c10d, what)(*given.get(what, (output, value)))
    k.equal(value if what == "all_reduce_coalesced" else output, [4.0, 5.0], "the result")
    k.check(any(one.category is FutureWarning for one in caught), "no FutureWarning")


@script("6.7", "all_reduce/sparse", (1, 2, 3))
def _sparse(k: Kit) -> None:
    indices = k.torch.tensor([[k.rank]], device=k.device)
    tensor = k.torch.sparse_coo_tensor(indices, k.torch.ones(1, device=k.device), (k.size,))
    k.equal(_reduced(k, tensor).to_dense(), [1.0] * k.size, "the sum")


@script("7.7", "all_to_all_single/sizes_of_many_kinds", (2, 3))
def _kinds(k: Kit) -> None:
    """Sizes on one side, an empty list for none, zeros."""
    ones = [1] * k.size
    source = k.arange(k.size) + 10 * k.rank
    for sizes in ((None, ones), (ones, None), ([], []), (ones, ones)):
        output = k.full(0, k.size)
        k.dist.all_to_all_single(output, source, *sizes)
        k.equal(output, [10.0 * rank + k.rank for rank in range(k.size)], f"the output with sizes {sizes}")
    # Only the first rank sends, and to all.
    sends = [2] * k.size if k.rank == 0 else [0] * k.size
    gets = [2] + [0] * (k.size - 1)
    output = k.full(0, 2)
    k.dist.all_to_all_single(output, k.arange(sum(sends)), gets, sends)
    k.equal(output, [2.0 * k.rank, 2.0 * k.rank + 1], "what the only sender sent")


@script("7.7", "all_to_all_single/sizes_that_do_not_fit", (1, 2))
def _sums(k: Kit) -> None:
    wrong = [3] * k.size
    output = k.full(0, k.size)
    k.refused(lambda: k.dist.all_to_all_single(output, output.clone(), wrong, wrong))


@script("7.9", "all_reduce/table_of_the_docs", (2,))
def _golden_reduce(k: Kit) -> None:
    k.equal(_reduced(k, k.tensor(1, 2, dtype="int64") + 2 * k.rank), [4, 6], "the sum")
    tensor = k.tensor(1 + 1j, 2 + 2j, dtype="complex64") + 2 * k.rank * (1 + 1j)
    k.equal(_reduced(k, tensor), k.torch.tensor([4 + 4j, 6 + 6j]), "the complex sum")


@script("7.9", "all_to_all/uneven_table_of_the_docs", (4,))
def _golden_uneven(k: Kit) -> None:
    """Golden values: the uneven tables of all_to_all and of all_to_all_single."""
    sends = [[2, 2, 1, 1], [3, 2, 2, 2], [2, 1, 1, 1], [2, 2, 2, 1]]
    expected = [
        [0, 1, 10, 11, 12, 20, 21, 30, 31],
        [2, 3, 13, 14, 22, 32, 33],
        [4, 15, 16, 23, 34, 35],
        [5, 17, 18, 24, 36],
    ]
    source = k.tensor(*range(10 * k.rank, 10 * k.rank + sum(sends[k.rank])), dtype="int64")
    gets = [sends[rank][k.rank] for rank in range(4)]
    output = k.torch.zeros(sum(gets), dtype=k.torch.int64, device=k.device)
    k.dist.all_to_all_single(output, source, gets, sends[k.rank])
    k.equal(output, expected[k.rank], "the output of all_to_all_single")
    outputs = [k.torch.zeros(count, dtype=k.torch.int64, device=k.device) for count in gets]
    k.dist.all_to_all(outputs, list(source.split(sends[k.rank])))
    k.equal(k.torch.cat(outputs), expected[k.rank], "the output of all_to_all")


@script("7.9", "reduce_scatter_tensor/table_of_the_docs", (2,))
def _golden_scatter(k: Kit) -> None:
    source = k.tensor(*range(4), dtype="int64")
    for shape in ((4,), (2, 2)):
        output = k.torch.zeros(2, dtype=k.torch.int64, device=k.device)
        k.dist.reduce_scatter_tensor(output, source.reshape(shape))
        k.equal(output, [[0, 2], [4, 6]][k.rank], f"the part of the input of shape {shape}")


@script("7.4", "all_gather_coalesced/example_of_the_docs", (2,))
def _golden_coalesced(k: Kit) -> None:
    """Three shapes, the outer list by rank."""
    sources = [k.torch.full(shape, float(10 * k.rank + n)) for n, shape in enumerate([(2, 2), (1,), (2,)])]
    outputs = [[k.torch.full_like(source, -1) for source in sources] for _ in range(2)]
    k.dist.all_gather_coalesced(outputs, sources)
    for rank in range(2):
        for number, output in enumerate(outputs[rank]):
            k.equal(output, k.torch.full_like(output, 10 * rank + number), f"output {number} of rank {rank}")


@script("7.10", "{}/concatenation_and_stack", (1, 2, 3), each=("gather_single", "gather_into_tensor"))
def _gathers(k: Kit, what: str) -> None:
    gather = k.need(what)
    for root in range(k.size):
        for shape in ((2 * k.size,), (k.size, 2)):
            found = k.full(-1, 2 * k.size).reshape(shape) if k.rank == root else None
            own = k.tensor(k.rank + 1, 0.5)
            gather(own, found, root)
            k.equal(own, [k.rank + 1.0, 0.5], "the input")
            if found is not None:
                wanted = k.torch.tensor([[rank + 1.0, 0.5] for rank in range(k.size)])
                k.equal(found, wanted.reshape(shape), f"the output on root {root}")


@script("7.10", "gather_single/in_a_part", (4, 5), group="part")
def _gathers_in_part(k: Kit) -> None:
    gather, group = k.need("gather_single"), k.group("part")
    for place, root in enumerate(k.ranks) if k.rank in k.ranks else ():
        found = k.full(0, len(k.ranks)) if k.rank == root else None
        gather(k.tensor(k.rank), found, group=group, group_dst=place, async_op=True).wait()
        if found is not None:
            k.equal(found, [float(rank) for rank in k.ranks], "the output")


@script("7.10", "gather_single/refusals")
def _gathers_wrongly(k: Kit) -> None:
    gather = k.need("gather_single")
    for wrong in (None, k.full(0, 3), k.tensor(0, 0, dtype="int64")):
        with k.raises((ValueError, RuntimeError, TypeError)):
            gather(k.full(1, 2), wrong, 0)
