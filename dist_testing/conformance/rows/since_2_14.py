"""What torch has since 2.14: gather into one tensor, backends of a group, hooks, and what a group can do."""

from __future__ import annotations

from typing import Any

from dist_testing.conformance.kit import Kit
from dist_testing.conformance.rows.registry import script

_GATHERS = ("gather_single", "gather_into_tensor")
# Property of a group -> the method that a group without it refuses, and its arguments.
_CAPABILITIES = {
    "supports_window": ("new_window", ()),
    "supports_reconfigure": ("get_reconfigure_handle", ()),
    "supports_abort_hooks": ("register_abort_hook", (1, print)),
}


@script("7.10", "{}/concatenation_and_stack", (1, 2, 3), each=_GATHERS)
def _gathers(k: Kit, what: str) -> None:
    gather = k.need(what)
    for root in range(k.size):
        for shape in ((2 * k.size,), (k.size, 2)):
            found = k.torch.full(shape, -1.0, device=k.device) if k.rank == root else None
            own = k.torch.tensor([k.rank + 1.0, 0.5], device=k.device)
            gather(own, found, root)
            k.equal(own, [k.rank + 1.0, 0.5], "the input")
            if found is not None:
                wanted = k.torch.tensor([[rank + 1.0, 0.5] for rank in range(k.size)])
                k.equal(found, wanted.reshape(shape), f"the output on root {root}")


@script("7.10", "gather_single/in_a_part", (4, 5), group="part")
def _gathers_in_part(k: Kit) -> None:
    gather, group = k.need("gather_single"), k.group("part")
    if k.rank not in k.ranks:
        return
    for place, root in enumerate(k.ranks):
        found = k.torch.zeros(len(k.ranks), device=k.device) if k.rank == root else None
        work = gather(k.tensor(k.rank), found, group=group, group_dst=place, async_op=True)
        work.wait()
        if found is not None:
            k.equal(found, [float(rank) for rank in k.ranks], "the output")


@script("7.10", "gather_single/refusals")
def _gathers_wrongly(k: Kit) -> None:
    gather = k.need("gather_single")
    for wrong in (None, k.torch.zeros(3, device=k.device), k.torch.zeros(2, dtype=k.torch.int64, device=k.device)):
        with k.raises((ValueError, RuntimeError, TypeError)):
            gather(k.torch.ones(2, device=k.device), wrong, 0)


@script("2.17", "get_backend_impl/by_group_name_and_device", (2,))
def _backend_of(k: Kit) -> None:
    get_backend_impl = k.need("get_backend_impl")
    group = k.new_group([1])
    impl = get_backend_impl()
    k.equal((impl.rank(), impl.size()), (k.rank, 2), "rank and size of the default group's backend")
    k.check(get_backend_impl(device=k.device).name() == impl.name(), "another backend for the device")
    if k.rank == 1:
        k.equal(get_backend_impl(group).size(), 1, "the size of the part's backend")
        k.equal(get_backend_impl(group.group_name).size(), 1, "the size of the backend by its group's name")
    else:
        with k.raises(ValueError, "Invalid process group"):
            get_backend_impl(group)


@script("2.18", "hooks/see_each_call_before_and_after", (2,))
def _hooks(k: Kit) -> None:
    group = k.new_group()
    register_pre_hook = k.need("register_pre_hook", group)
    seen: list[Any] = []
    register_pre_hook(1, lambda call: seen.append(("pre", call.name.name, call.op_id)))
    group.register_post_hook(2, lambda call: seen.append(("post", call.name.name, call.op_id)))
    k.dist.all_reduce(k.tensor(1), group=group)
    k.dist.broadcast(k.tensor(1), 0, group=group)
    k.equal(
        [one[:2] for one in seen],
        [(at, name) for name in ("ALLREDUCE", "BROADCAST") for at in ("pre", "post")],
        "the calls",
    )
    k.equal([one[2] for one in seen[::2]], [one[2] for one in seen[1::2]], "the numbers of the calls after them")
    group.unregister_pre_hook(1)
    group.unregister_post_hook(2)
    k.dist.all_reduce(k.tensor(1), group=group)
    k.equal(len(seen), 4, "how often hooks were called")


@script("2.19", "{}/agrees_with_its_method", each=_CAPABILITIES)
def _capability(k: Kit, what: str) -> None:
    # A group in Python can say it to each torch.
    k.need(what, k.dist.ProcessGroup)
    group = k.dist.group.WORLD
    name, arguments = _CAPABILITIES[what]
    if not getattr(group, what):
        with k.raises((RuntimeError, NotImplementedError, ValueError)):
            getattr(group, name)(*arguments)
    elif what == "supports_abort_hooks":
        group.register_abort_hook(*arguments)
        group.unregister_abort_hook(1)
    else:
        getattr(group, name)(*arguments)
