"""Section 4 of the contract: sub-groups."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

from dist_testing.conformance.kit import Kit, first_line
from dist_testing.conformance.rows import script
from dist_testing.conformance.rows.names_and_settings import registered


@script("4.1", "new_group/sorts_ranks", (4, 5))
def _sorts(k: Kit) -> None:
    group = k.new_group([3, 1])
    if k.rank in (1, 3):
        k.equal(k.dist.get_rank(group), k.rank // 2, "the rank in the group")
        k.check_sum(group, [1, 3])


@script("4.1", "new_group/all_by_none", (1, 3))
def _all(k: Kit) -> None:
    group = k.new_group()
    k.equal(k.dist.get_world_size(group), k.size, "the size")
    k.check_sum(group, list(range(k.size)))


@script("4.1", "new_group/handle_of_non_member", (2, 3))
def _outside(k: Kit) -> None:
    group = k.new_group([0])
    is_outside = group == k.dist.GroupMember.NON_GROUP_MEMBER
    k.equal(is_outside, k.rank != 0, "whether the handle says that the rank is no member")


@script("4.1", "new_group/description", (2,))
def _description(k: Kit) -> None:
    k.equal(k.new_group().group_desc, "undefined", "the description")
    k.equal(k.new_group(group_desc="mine").group_desc, "mine", "the description that was given")


_BAD_RANKS = {
    "too_many_ranks": [0, 1, 2],
    "negative_rank": [-1, 0],
    "duplicates": [0, 0],
    "rank_outside_world": [0, 2],
    "no_ranks": [],
}


@script("4.1", "new_group/refuses_{}", (2,), each=_BAD_RANKS)
def _refuses(k: Kit, what: str) -> None:
    with k.raises((ValueError, RuntimeError) if _BAD_RANKS[what] else (ValueError, RuntimeError, TypeError)):
        k.new_group(_BAD_RANKS[what])
    k.check_sum()


@script("4.1", "new_group/refused_call_counts_nothing", (2,))
def _counts_nothing(k: Kit) -> None:
    before = k.dist.get_pg_count()
    for ranks in list(_BAD_RANKS.values())[:3]:
        with contextlib.suppress(ValueError, RuntimeError):
            k.new_group(ranks)
    k.equal(k.dist.get_pg_count() - before, 0, "the groups that three refused calls added")


@script("4.1", "new_group/refuses_bad_timeout", (1,))
def _bad_limit(k: Kit) -> None:
    with k.raises(TypeError, "timeout"):
        k.dist.new_group([0], timeout=5)


@script("4.1", "new_group/limit_and_options", (2,), init=60)
def _limit(k: Kit) -> None:
    """The limit of a group is its own, and not that of the default group."""
    for more in ({"timeout": timedelta(seconds=7)}, {}):
        backend = k.dist.new_group(**more)._get_backend(k.device)
        if (options := getattr(backend, "options", None)) is not None:
            wanted = more.get("timeout", k.c10d._get_default_timeout(k.backend))
            k.equal(options._timeout, wanted, "the limit of the group")


@script("4.1", "new_group/local_synchronization", (4,))
def _local(k: Kit) -> None:
    """Two groups side by side, of which each rank makes its own only."""
    # torch names them by the number of the rank's groups, which earlier cells leave equal on ranks of one parity only.
    ranks = [k.rank % 2, k.rank % 2 + 2]
    k.check_sum(k.new_group(ranks, use_local_synchronization=True), ranks)


@script("4.1", "new_group/local_synchronization_after_a_part", (4,), init=2)
def _local_after_part(k: Kit) -> None:
    """The ranks of a part have made one group more than the others, and still find their peers by the name."""
    k.dist.new_group([1, 3])
    ranks = [0, 1] if k.rank < 2 else [2, 3]
    k.check_sum(k.dist.new_group(ranks, use_local_synchronization=True), ranks)


@script("4.1", "new_group/after_local_synchronization_of_some", (2,), init=2)
def _after_local(k: Kit) -> None:
    """Some ranks have made one group more than the others, and all of them make the next one."""
    k.dist.new_group([0], use_local_synchronization=True)
    k.check_sum(k.dist.new_group())


@script("4.1", "new_group/overlapping_interleaved", (3, 4, 5, 7))
def _overlap(k: Kit) -> None:
    first, last = list(range(k.size - 1)), list(range(1, k.size))
    groups = [(k.new_group(first), first), (k.new_group(last), last)]
    for group, ranks in 3 * groups:
        if k.rank in ranks:
            k.check_sum(group, ranks)


@script("4.1", "new_group/many", (2, 3))
def _many(k: Kit) -> None:
    for _ in range(12):
        group = k.dist.new_group(list(range(k.size)))
        k.check_sum(group)
        k.dist.destroy_process_group(group)


@script("4.1", "new_group/other_order_on_other_ranks", (2,))
def _orders(k: Kit) -> None:
    """Async calls on two groups in different order on different ranks."""
    groups = [k.new_group([0, 1]), k.new_group([0, 1])]
    tensors = [k.tensor(k.rank + 1), k.tensor(10 * (k.rank + 1))]
    order = (0, 1) if k.rank == 0 else (1, 0)
    works = [k.dist.all_reduce(tensors[index], group=groups[index], async_op=True) for index in order]
    for work in works:
        work.wait()
    k.equal([tensor.item() for tensor in tensors], [3.0, 30.0], "the two sums")


def _check_parts(k: Kit, made: tuple[Any, list[Any]], ranks: list[int]) -> None:
    """Check what a function has returned that makes two groups at once: the own group, of these ranks, and both."""
    own, every = made
    k.mine += every
    k.equal(len(every), 2, "the number of groups")
    if k.rank not in ranks:
        k.equal(own, None, "the own group of a rank in no list")
        return
    k.equal(k.dist.get_process_group_ranks(own), ranks, "the ranks of the own group")
    k.check_sum(own, ranks)


@script("4.2", "new_subgroups/cuts_the_world", (4,))
def _subgroups(k: Kit) -> None:
    _check_parts(k, k.dist.new_subgroups(2), [0, 1] if k.rank < 2 else [2, 3])


@script("4.2", "new_subgroups/of_a_group", (4, 5))
def _subgroups_of(k: Kit) -> None:
    """`group` is cut, and not the world; its ranks are global."""
    part, pairs = k.new_group([0, 1, 2, 3]), [[0, 1], [2, 3]]
    if k.rank < 4:
        _check_parts(k, k.dist.new_subgroups(2, part), pairs[k.rank // 2])
        return
    # All ranks make each group, and this one has no group to cut.
    for ranks in pairs:
        k.new_group(ranks)


@script("4.2", "new_subgroups/refusals", (4,))
def _bad_subgroups(k: Kit) -> None:
    for size, text in ((0, "positive"), (5, "not exceed"), (3, "divisible")):
        with k.raises(ValueError, text):
            k.dist.new_subgroups(size)
    if not k.torch.accelerator.is_available():
        # The default is the number of GPUs of a machine.
        with k.raises(ValueError, "group size"):
            k.dist.new_subgroups()


@script("4.3", "new_subgroups_by_enumeration/lists", (4, 5))
def _enumeration(k: Kit) -> None:
    """Ranks in no list get None and all groups."""
    lists = [[0, 2], [1, 3]]
    _check_parts(k, k.dist.new_subgroups_by_enumeration(lists), lists[k.rank % 2])


@script("4.3", "new_subgroups_by_enumeration/refusals", (2,))
def _bad_enumeration(k: Kit) -> None:
    bad: tuple[Any, ...] = (None, [])
    for lists in bad:
        with k.raises(ValueError):
            k.dist.new_subgroups_by_enumeration(lists)
    with k.raises(ValueError, "[Rr]ank 0|has already"):
        k.dist.new_subgroups_by_enumeration([[0, 1], [0]])


def _can(k: Kit, what: str) -> bool:
    """Return whether the backend of the default group says that it can split or shrink groups."""
    return bool(getattr(k.dist.group.WORLD._get_backend(k.device), f"supports_{what}", False))


@script("4.4", "split_group/refusals", (2,))
def _bad_split(k: Kit) -> None:
    split = k.need("split_group")
    nothing: tuple[Any, ...] = (None, [])
    for lists in nothing:
        with k.raises((ValueError, RuntimeError)):
            split(split_ranks=lists)


@script("4.4", "split_group/parts", (4,), init=True)
def _split(k: Kit) -> None:
    """A backend that can split makes all parts at once; one that cannot is refused."""
    split = k.need("split_group")
    if not _can(k, "splitting") or k.dist.group.WORLD.bound_device_id is None:
        # Since torch 2.15 gloo can, and no device need be bound.
        try:
            split(split_ranks=[[0, 1], [2, 3]])
        except RuntimeError as error:
            # Up to torch 2.14 a device must be bound; since 2.15 the backend must support it.
            known = "device" in str(error) or "does not support splitting" in str(error)
            k.check(known, f"another reason: {first_line(error)}")
            return
    for bad in ([list[int]()], [[0, 0]], [[0, 1, 2, 3, 4]]):
        with k.raises(ValueError):
            split(split_ranks=bad)
    with k.raises(ValueError, "not registered"):
        split("no group", [[0]])
    with k.raises(TypeError, "timeout"):
        split(split_ranks=[[0, 1]], timeout=5)
    device = k.dist.group.WORLD.bound_device_id
    for backend, text in ((f"meta:{k.backend}", "meta"), (f"{device.type}:unheard_of", "[Mm]ismatch")):
        with k.raises(ValueError, text):
            split(split_ranks=[[0, 1]], backend=backend)
    made = split(split_ranks=[[2, 0], [3]], timeout=timedelta(seconds=7), group_desc="kit")
    # Since torch 2.15 a rank outside of all parts gets the mark of a non-member, as its documentation says.
    nothing = (None, k.dist.GroupMember.NON_GROUP_MEMBER)
    k.equal(made in nothing, k.rank == 1, "whether there is no group")
    if made not in nothing:
        ranks = [3] if k.rank == 3 else [0, 2]
        k.equal(k.dist.get_process_group_ranks(made), ranks, "the ranks of the part")
        k.equal((made.rank(), made.group_desc), (ranks.index(k.rank), "kit"), "rank and description")
        k.check(k.backend in k.dist.get_backend_config(made), f"the config is {k.dist.get_backend_config(made)}")
        k.check_sum(made, ranks)
        if k.rank == 2:
            inner = split(made, [[1]])
            k.equal(k.dist.get_process_group_ranks(inner), [2], "the ranks of a part of a part")
        elif k.rank == 0:
            k.check(split(made, [[1]]) in nothing, "there is a part of a part without this rank")
        k.dist.destroy_process_group(made)
    k.check_sum()


@script("4.5", "shrink_group/refusals", (2,))
def _bad_shrink(k: Kit) -> None:
    shrink = k.need("shrink_group")
    for ranks, kind in (("0", TypeError), ([], ValueError)):
        with k.raises(kind):
            shrink(ranks)
    for flags in (2, "abort"):
        with k.raises(ValueError, "shrink_flags"):
            shrink([1], shrink_flags=flags)


@script("4.5", "shrink_group/{}", (3,), each=("default_group", "part"), init=60)
def _shrink(k: Kit, what: str) -> None:
    """A backend that can shrink leaves the other ranks a group that works; one that cannot is refused."""
    shrink = k.need("shrink_group")
    group = None if what == "default_group" else k.dist.new_group()
    k.check_sum(group)
    if not _can(k, "shrinking"):
        with k.raises(TypeError, "support"):
            shrink([1], group)
        return
    values, types = ([3], [0, 0], [0, 1, 2]), (["1"],)
    for kind, lists in ((ValueError, values), (RuntimeError, ([k.rank],)), (TypeError, types)):
        for bad in lists:
            with k.raises(kind):
                shrink(bad, group)
    if k.rank == 1:
        k.meet()
        return
    made = shrink([1], group)
    k.equal(k.dist.get_process_group_ranks(made), [0, 2], "the ranks that are left")
    k.equal((k.dist.get_rank(made), made.rank(), made.size()), (k.rank // 2, k.rank // 2, 2), "rank and size")
    k.equal(made is k.dist.group.WORLD, group is None, "whether it is the default group")
    k.check_sum(made, [0, 2])
    if group is not None:
        with k.raises(ValueError, "Invalid process group|not initialized"):
            k.dist.get_backend(group)
    k.meet()


@script("4.5", "shrink_group/what_backends_get", fresh=True)
def _gets(k: Kit) -> None:
    """The excluded ranks in their order, the flags and the options."""
    shrink = k.need("shrink_group")
    given: list[Any] = []

    class Group(k.dist.ProcessGroup):  # type: ignore[misc,name-defined]
        supports_shrinking = True

        def _get_backend(self, device: Any) -> Any:
            return self

        def shrink(self, *arguments: Any) -> None:
            given.append(arguments)
            raise KeyError("no group")

    flags, options = k.c10d.SHRINK_ABORT, object()
    with registered(k, kit_seven={"func": lambda store, rank, size, limit: Group(rank, size)}):
        k.dist.init_process_group("kit_seven", store=k.dist.HashStore(), rank=0, world_size=4)
        for more in ({}, {"shrink_flags": flags, "pg_options": options}):
            with k.raises(KeyError):
                shrink([3, 1], **more)
    k.equal(given, [([1, 3], k.c10d.SHRINK_DEFAULT, None), ([1, 3], flags, options)], "what the backend gets")


@script("4.5", "shrink_group/group_of_one")
def _shrink_one(k: Kit) -> None:
    with k.raises((ValueError, TypeError, RuntimeError)):
        k.need("shrink_group")([0])


@script("4.6", "_new_group_with_tag/one_group_per_tag", (2,))
def _tags(k: Kit) -> None:
    made = k.c10d._new_group_with_tag([0, 1], pg_tag="kit")
    k.mine.append(made)
    found = k.c10d._find_pg_by_ranks_and_tag("user:kit", [0, 1])
    k.check(found is made, "another group was found by the tag")
    k.equal(k.c10d._get_group_tag(made), "kit", "the tag")
    again = k.c10d._find_or_create_pg_by_ranks_and_tag("user:kit", [0, 1], 2)
    k.check(again is made, "a second group was made for the tag")
    with k.raises(ValueError):
        k.c10d._find_or_create_pg_by_ranks_and_tag("user:kit", [0, 1], 3)


@script("4.7", "_resolve_process_group/by_name", (2,))
def _by_name(k: Kit) -> None:
    group = k.dist.new_group([0, 1])
    k.check(k.c10d._resolve_process_group(group.group_name) is not None, "the name was not found")
    name = group.group_name
    k.dist.destroy_process_group(group)
    with k.raises(Exception):
        k.c10d._resolve_process_group(name)


@script("4.8", "_time_estimator/only_nccl")
def _estimator(k: Kit) -> None:
    estimator = k.need("_time_estimator")
    if not k.backend.endswith("nccl"):
        with k.raises((NotImplementedError, RuntimeError)), estimator(device=k.device):
            k.dist.all_reduce(k.tensor(1))
