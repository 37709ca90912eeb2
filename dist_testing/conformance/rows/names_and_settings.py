"""Section 2 of the contract: names, backends, configuration, hooks, and what a group can do."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from dist_testing.conformance.kit import Kit
from dist_testing.conformance.rows import script
from dist_testing.core.ground.environment import environment


@script("2.1", "Backend/names")
def _backend_names(k: Kit) -> None:
    for name in ("GLOO", "gloo", "Gloo"):
        k.equal(k.dist.Backend(name), "gloo", f"Backend({name!r})")
    k.equal(k.dist.Backend("Unheard_Of"), "unheard_of", "Backend of an unknown name")
    for name in ("GLOO", "NCCL", "UCC", "MPI", "XCCL"):
        k.equal(getattr(k.dist.Backend, name), name.lower(), f"Backend.{name}")
        k.check(name.lower() in k.dist.Backend.backend_list, f"{name.lower()} is not in backend_list")
    with k.raises(ValueError, "string-ish"):
        k.dist.Backend(7)


@contextmanager
def registered(k: Kit, **creators: Any) -> Iterator[list[str]]:
    """Register backends, each with the arguments of `register_backend`; yield the warnings. In the end none is left."""
    kind = k.dist.Backend
    try:
        with warnings.catch_warnings(record=True, action="always") as caught:
            for name, arguments in creators.items():
                kind.register_backend(name, **{"func": lambda *given: None, "devices": ["cpu"], **arguments})
        yield [str(one.message) for one in caught]
    finally:
        for name in creators:
            for table in (kind._plugins, kind.backend_capability, kind.backend_type_map):
                table.pop(name, None)
                table.pop(name.upper(), None)
            kind.backend_list[:] = [one for one in kind.backend_list if one != name]
            if hasattr(kind, name.upper()):
                delattr(kind, name.upper())
            for device in [key for key, value in kind.default_device_backend_map.items() if value == name]:
                del kind.default_device_backend_map[device]


@script("2.2", "register_backend/{}", each=("enters_every_table", "one_device_as_text", "without_devices_warns"))
def _registers(k: Kit, what: str) -> None:
    """One device as a text is not one per letter. Without devices there is a warning, and cpu and cuda are assumed."""
    kind = k.dist.Backend
    before = dict(kind.default_device_backend_map)
    devices = {"one_device_as_text": "cpu", "without_devices_warns": None}.get(what, ["cpu"])
    with registered(k, kit_one={"devices": devices}) as texts:
        if devices is None:
            k.check(any("Device capability" in text for text in texts), "no warning")
            k.equal(kind.backend_capability["kit_one"][:2], ["cpu", "cuda"], "the devices")
            return
        k.equal(kind.KIT_ONE, "kit_one", "the attribute")
        k.check("kit_one" in kind.backend_list, "backend_list does not hold the name")
        k.equal(kind.backend_capability["kit_one"], ["cpu"], "the devices")
        k.equal(kind.backend_type_map["kit_one"], k.dist.ProcessGroup.BackendType.CUSTOM, "the type")
        k.equal(dict(kind.default_device_backend_map), before, "the default backends of devices")
        k.check(k.dist.is_backend_available("kit_one"), "the name does not count as available")


@script("2.2", "register_backend/second_function_wins")
def _registers_twice(k: Kit) -> None:
    with registered(k, kit_two={"func": "first"}), registered(k, kit_two={"func": "second"}):
        k.equal(k.dist.Backend._plugins["KIT_TWO"].creator_fn, "second", "the function")


@script("2.2", "register_backend/what_creators_get", fresh=True)
def _creators(k: Kit) -> None:
    """Their groups are shut down at their end."""
    given: list[Any] = []

    class Group(k.dist.ProcessGroup):  # type: ignore[misc,name-defined]
        group_name = "kit"

        def shutdown(self) -> None:
            given.append("end")

    def plain(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        given.append((rank, size, timeout))
        return Group(rank, size)

    def extended(options: Any, pg_options: Any) -> Any:
        given.append((options.group_rank, options.group_size, options.timeout))
        k.equal(pg_options, wanted, "pg_options")
        k.check(isinstance(options.global_ranks_in_group, list), "global_ranks_in_group is no list")
        return Group(options.group_rank, options.group_size)

    limit, wanted = timedelta(seconds=7), object()
    with registered(k, kit_five={"func": plain}, kit_six={"func": extended, "extended_api": True}):
        for name, more in (("kit_five", {}), ("kit_six", {"pg_options": wanted})):
            k.dist.init_process_group(name, store=k.dist.HashStore(), rank=0, world_size=1, timeout=limit, **more)
            part = k.dist.new_group(timeout=limit, **more)
            k.dist.destroy_process_group(part)
            k.dist.destroy_process_group()
    k.equal(given, [(0, 1, limit), (0, 1, limit), "end", "end"] * 2, "what creators and groups get")


@script("2.3", "BackendConfig/texts")
def _configs(k: Kit) -> None:
    config, kind, pairs = k.c10d.BackendConfig, k.dist.Backend, "cpu:gloo,cuda:nccl"
    for name, text in (("gloo", "cpu:gloo,cuda:gloo"), ("nccl", "cuda:nccl"), (pairs, pairs)):
        k.equal(repr(config(kind(name))), text, f"the config of {name}")
    k.equal(config(kind(pairs)).get_device_backend_map()["cuda"], "nccl", "cuda's backend")
    wrong = "device:backend|format|Invalid"
    for bad, pattern in (("cpu:gloo:x", wrong), ("cpu:gloo,cuda", wrong), ("cpu:gloo,cpu:gloo", "Duplicate")):
        with k.raises(ValueError, pattern):
            config(kind(bad))


@script("2.4", "get_default_backend_for_device/names")
def _device_defaults(k: Kit) -> None:
    get = k.dist.get_default_backend_for_device
    for device, name in (("cpu", "gloo"), ("cuda", "nccl"), ("xpu", "xccl"), (k.torch.device("cuda", 1), "nccl")):
        k.equal(get(device), name, f"the backend of {device}")
    with k.raises(ValueError, "not registered"):
        get("meta")


@script("2.5", "is_backend_available/names")
def _available(k: Kit) -> None:
    """Names in any case; several only if every one is there; an unknown one is not."""
    ask = k.dist.is_backend_available
    for name in ("mpi", "nccl", "gloo", "ucc", "xccl"):
        built = getattr(k.dist, f"is_{name}_available")()
        k.check(isinstance(built, bool), f"is_{name}_available() is no bool")
        for text in (name, name.upper()):
            k.equal(ask(text), built, f"is_backend_available({text!r})")
    k.equal(ask("cpu:gloo"), k.dist.is_gloo_available(), "the availability of one pair")
    for text in ("unheard_of", "cpu:unheard_of", "cpu:gloo,cuda:unheard_of"):
        k.equal(ask(text), False, f"is_backend_available({text!r})")


@script("2.6", "is_initialized/before_and_after", fresh=True)
def _initialised(k: Kit) -> None:
    k.equal(k.dist.is_initialized(), False, "is_initialized() before")
    k.init()
    k.equal(k.dist.is_initialized(), True, "is_initialized() after")
    k.dist.destroy_process_group()
    k.equal(k.dist.is_initialized(), False, "is_initialized() after the end")


@script("2.6", "get_node_local_rank/sources", fresh=True)
def _local_rank(k: Kit) -> None:
    get = k.dist.get_node_local_rank
    with environment({"LOCAL_RANK": "3"}):
        k.equal(get(), 3, "the local rank")
        k.equal(get(fallback_rank=5), 3, "the local rank with a fallback")
    with environment({"LOCAL_RANK": None}):
        k.equal(get(fallback_rank=5), 5, "the fallback")
        with k.raises(RuntimeError, "LOCAL_RANK"):
            get()


@script("2.6", "is_torchelastic_launched/variable", fresh=True)
def _elastic(k: Kit) -> None:
    for value in (None, "7"):
        with environment({"TORCHELASTIC_RUN_ID": value}):
            k.equal(k.dist.is_torchelastic_launched(), value is not None, f"the answer with {value}")


@script("2.7", "get_backend/default_and_part", (1, 4))
def _get_backend(k: Kit) -> None:
    k.equal(k.dist.get_backend(), k.backend, "get_backend()")
    k.check(k.backend in k.dist.get_backend_config(), f"the config is {k.dist.get_backend_config()}")
    k.equal(k.dist.get_backend_config(), k.dist.get_backend_config().lower(), "the config")
    part = k.group("part") if k.size == 4 else None
    if k.rank % 2 or part is None:
        k.equal(k.dist.get_backend(part), k.backend, "get_backend() of a part")
    else:
        for ask in (k.dist.get_backend, k.dist.get_backend_config):
            with k.raises(ValueError, "Invalid process group"):
                ask(part)


@script("2.8", "get_rank/default_and_part", (1, 4, 5))
def _get_rank(k: Kit) -> None:
    k.equal((k.dist.get_rank(), k.dist.get_world_size()), (k.rank, k.size), "rank and size")
    if k.size >= 4:
        part = k.group("part")
        expected = (k.rank // 2, k.size // 2) if k.rank % 2 else (-1, -1)
        k.equal((k.dist.get_rank(part), k.dist.get_world_size(part)), expected, "rank and size in the part")


@script("2.9", "get_global_rank/inverse_of_group_rank", (4, 7))
def _translate(k: Kit) -> None:
    part = k.group("part")
    if k.rank % 2 == 0:
        return
    for place, rank in enumerate(range(1, k.size, 2)):
        k.equal(k.dist.get_global_rank(part, place), rank, f"the global rank of {place}")
        k.equal(k.dist.get_group_rank(part, rank), place, f"the rank in the group of {rank}")
    for translate, bad in ((k.dist.get_group_rank, 0), (k.dist.get_global_rank, k.size)):
        with k.raises(ValueError, "not part of group"):
            translate(part, bad)
        k.equal(translate(k.dist.group.WORLD, k.rank), k.rank, f"{translate.__name__} in the default group")


@script("2.10", "get_process_group_ranks/in_group_order", (4, 5))
def _group_ranks(k: Kit) -> None:
    k.equal(k.dist.get_process_group_ranks(None), list(range(k.size)), "the ranks of None")
    part = k.group("part")
    if k.rank % 2:
        k.equal(k.dist.get_process_group_ranks(part), list(range(1, k.size, 2)), "the ranks of a part")


@script("2.11", "get_pg_count/counts", (1, 2), init=True)
def _count(k: Kit) -> None:
    k.equal(k.dist.get_pg_count(), 1, "the count after init")
    k.dist.new_group([0])
    k.equal(k.dist.get_pg_count(), 2, "the count after new_group")
    k.dist.destroy_process_group()
    k.equal(k.dist.get_pg_count(), 0, "the count at the end")


@script("2.12", "reduce_op/warns")
def _reduce_op(k: Kit) -> None:
    for name in ("SUM", "PRODUCT", "MIN", "MAX"):
        with warnings.catch_warnings(record=True, action="always") as caught:
            found = getattr(k.dist.reduce_op, name)
        k.check(any(one.category is FutureWarning for one in caught), f"no FutureWarning for {name}")
        k.equal(found, getattr(k.dist.ReduceOp, name), name)


_OPTIONS = {
    "AllToAllOptions": (),
    "AllreduceCoalescedOptions": ("reduceOp",),
    "AllreduceOptions": ("reduceOp",),
    "BarrierOptions": (),
    "BroadcastOptions": ("rootRank",),
    "GatherOptions": ("rootRank",),
    "ReduceOptions": ("rootRank", "reduceOp"),
    "ReduceScatterOptions": ("reduceOp",),
    "ScatterOptions": ("rootRank",),
}


@script("2.13", "{}/fields", each=_OPTIONS)
def _options(k: Kit, what: str) -> None:
    kind = k.need(what)
    k.equal(kind.__module__, "torch.distributed.distributed_c10d", f"{what}.__module__")
    options = kind()
    k.check(isinstance(options.timeout, timedelta), "timeout is no timedelta")
    options.timeout = timedelta(seconds=3)
    k.equal(options.timeout, timedelta(seconds=3), "the limit that was set")
    for field in ("asyncOp", *_OPTIONS[what]):
        k.check(hasattr(options, field), f"{field} is missing")


@script("2.13", "names/modules")
def _modules(k: Kit) -> None:
    """Classes of the C++ module say that they come from distributed_c10d."""
    for name in ("PrefixStore", "ProcessGroup", "ReduceOp", "Store", "DebugLevel", "Work"):
        k.equal(getattr(k.c10d, name).__module__, "torch.distributed.distributed_c10d", f"{name}.__module__")
    k.check(k.c10d.get_debug_level() in k.c10d.DebugLevel.__members__.values(), "get_debug_level() is no DebugLevel")


@script("2.13", "allreduce/options_are_obeyed", (2, 3))
def _obeyed(k: Kit) -> None:
    group = k.dist.group.WORLD
    options = k.dist.AllreduceOptions()
    options.reduceOp = k.dist.ReduceOp.MAX
    tensor = k.tensor(k.rank + 1)
    group.allreduce([tensor], options).wait()
    k.equal(tensor, [float(k.size)], "the largest")
    wanted = k.dist.BroadcastOptions()
    wanted.rootRank = k.size - 1
    tensor = k.tensor(k.rank + 5)
    group.broadcast([tensor], wanted).wait()
    k.equal(tensor, [float(k.size + 4)], "the root's tensor")


@script("2.14", "default_pg_timeout/value")
def _default_limit(k: Kit) -> None:
    k.equal(k.c10d.default_pg_timeout, timedelta(minutes=30), "default_pg_timeout")
    k.equal(k.c10d._get_default_timeout("gloo"), timedelta(minutes=30), "the limit of gloo")
    if k.dist.is_nccl_available():
        k.equal(k.c10d._get_default_timeout("nccl"), timedelta(minutes=10), "the limit of nccl")


@script("2.15", "private_names/that_suites_use")
def _private(k: Kit) -> None:
    k.check(isinstance(k.c10d._get_default_store(), k.dist.Store), "_get_default_store() is no store")
    k.equal(k.c10d._get_object_coll_device(), k.device.type, "the device of objects")
    config = k.c10d._get_pg_config()
    k.equal((config["pg_size"], config["ranks"]), (1, [0]), "size and ranks of _get_pg_config()")
    k.check(k.backend in config["backend_config"], f"the backend of _get_pg_config() is {config['backend_config']}")
    known = [(one["pg_name"], one["group_size"], one["ranks"]) for one in k.c10d._world.pg_config_info]
    # No ranks: all of them.
    k.check((config["pg_name"], 1, []) in known, f"pg_config_info has {known}")


@script("2.16", "{}/refusals", each=("_set_pg_timeout", "set_timeout"))
def _set_limit(k: Kit, what: str) -> None:
    set_limit = k.need(what)
    with k.raises(ValueError, "Invalid process group"):
        set_limit(timedelta(seconds=5), k.dist.GroupMember.NON_GROUP_MEMBER)
    with k.raises(AssertionError):
        set_limit(timedelta(seconds=5), "no group")


@script("2.17", "get_backend_impl/by_group_name_and_device", (2,))
def _backend_of(k: Kit) -> None:
    get_backend_impl, group = k.need("get_backend_impl"), k.new_group([1])
    impl = get_backend_impl()
    k.equal((impl.rank(), impl.size()), (k.rank, 2), "rank and size of the default group's backend")
    k.check(get_backend_impl(device=k.device).name() == impl.name(), "another backend for the device")
    if k.rank == 1:
        for one in (group, group.group_name):
            k.equal(get_backend_impl(one).size(), 1, f"the size of the part's backend by {one}")
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
    expected = [(at, name) for name in ("ALLREDUCE", "BROADCAST") for at in ("pre", "post")]
    k.equal([one[:2] for one in seen], expected, "the calls")
    k.equal([one[2] for one in seen[::2]], [one[2] for one in seen[1::2]], "the numbers of the calls after them")
    group.unregister_pre_hook(1)
    group.unregister_post_hook(2)
    k.dist.all_reduce(k.tensor(1), group=group)
    k.equal(len(seen), 4, "how often hooks were called")


# Property of a group -> the method that a group without it refuses, and its arguments.
_CAPABILITIES = {
    "supports_window": ("new_window", ()),
    "supports_reconfigure": ("get_reconfigure_handle", ()),
    "supports_abort_hooks": ("register_abort_hook", (1, print)),
}


@script("2.19", "{}/agrees_with_its_method", each=_CAPABILITIES)
def _capability(k: Kit, what: str) -> None:
    # A group in Python can say it to each torch.
    k.need(what, k.dist.ProcessGroup)
    group = k.dist.group.WORLD
    name, arguments = _CAPABILITIES[what]
    if not getattr(group, what):
        with k.raises((RuntimeError, NotImplementedError, ValueError)):
            getattr(group, name)(*arguments)
        return
    getattr(group, name)(*arguments)
    if what == "supports_abort_hooks":
        group.unregister_abort_hook(1)


@script("2.20", "record_comm/names_a_block")
def _record(k: Kit) -> None:
    record = k.need("record_comm")
    name = importlib.import_module("torch._C._distributed_c10d")._get_comm_profiling_name
    before = name()
    with k.raises(KeyError), record("kit"):
        k.equal(name(), "kit", "the name in the block")
        raise KeyError("user code")
    k.equal(name(), before, "the name after the block")
