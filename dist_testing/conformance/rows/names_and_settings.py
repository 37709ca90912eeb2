"""Section 2 of the contract: names, backends, configuration."""

from __future__ import annotations

import warnings
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from dist_testing.conformance.rows.registry import script
from dist_testing.core.ground.environment import environment

if TYPE_CHECKING:
    from dist_testing.conformance.kit import Kit


@script("2.1", "Backend/names")
def _backend_names(k: Kit) -> None:
    """A name in any case gives the name in lower case."""
    for name in ("GLOO", "gloo", "Gloo"):
        k.equal(k.dist.Backend(name), "gloo", f"Backend({name!r})")
    k.equal(k.dist.Backend("Unheard_Of"), "unheard_of", "Backend of an unknown name")
    for name in ("GLOO", "NCCL", "UCC", "MPI", "XCCL"):
        k.equal(getattr(k.dist.Backend, name), name.lower(), f"Backend.{name}")
        k.check(name.lower() in k.dist.Backend.backend_list, f"{name.lower()} is not in backend_list")
    with k.raises(ValueError, "string-ish"):
        k.dist.Backend(7)


def _register(k: Kit, name: str, creator: Any, **more: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        k.dist.Backend.register_backend(name, creator, **more)


def _unregister(k: Kit, name: str) -> None:
    kind = k.dist.Backend
    for table in (kind._plugins, kind.backend_capability, kind.backend_type_map):
        table.pop(name, None)
        table.pop(name.upper(), None)
    if name in kind.backend_list:
        kind.backend_list.remove(name)
    if hasattr(kind, name.upper()):
        delattr(kind, name.upper())
    for device in [key for key, value in kind.default_device_backend_map.items() if value == name]:
        del kind.default_device_backend_map[device]


@script("2.2", "register_backend/enters_every_table")
def _registers(k: Kit) -> None:
    """A registered name is an attribute and an entry of every table; its devices are exactly the given ones."""
    kind = k.dist.Backend
    try:
        _register(k, "kit_one", lambda *given: None, devices=["cpu"])
        k.equal(kind.KIT_ONE, "kit_one", "the attribute")
        k.check("kit_one" in kind.backend_list, "backend_list does not hold the name")
        k.equal(kind.backend_capability["kit_one"], ["cpu"], "the devices")
        k.equal(kind.backend_type_map["kit_one"], k.dist.ProcessGroup.BackendType.CUSTOM, "the type")
        k.equal(kind.default_device_backend_map.get("cpu"), "gloo", "the default of cpu, which it had before")
        k.check(k.dist.is_backend_available("kit_one"), "the name does not count as available")
    finally:
        _unregister(k, "kit_one")


@script("2.2", "register_backend/without_devices_warns")
def _registers_everywhere(k: Kit) -> None:
    """Without devices there is a warning, and cpu and cuda are assumed."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            k.dist.Backend.register_backend("kit_two", lambda *given: None)
        k.check(any("Device capability" in str(one.message) for one in caught), "no warning")
        k.equal(k.dist.Backend.backend_capability["kit_two"][:2], ["cpu", "cuda"], "the devices")
    finally:
        _unregister(k, "kit_two")


@script("2.2", "register_backend/one_device_as_text")
def _registers_text(k: Kit) -> None:
    """One device as a text is that one device, not one per letter."""
    before = dict(k.dist.Backend.default_device_backend_map)
    try:
        _register(k, "kit_three", lambda *given: None, devices="cpu")
        k.equal(k.dist.Backend.backend_capability["kit_three"], ["cpu"], "the devices")
        added = sorted(set(k.dist.Backend.default_device_backend_map) - set(before))
        k.equal(added, [], "devices that the registration added")
    finally:
        _unregister(k, "kit_three")


@script("2.2", "register_backend/second_function_wins")
def _registers_twice(k: Kit) -> None:
    """The newer function of a name wins."""
    try:
        _register(k, "kit_four", "first", devices=["cpu"])
        _register(k, "kit_four", "second", devices=["cpu"])
        k.equal(k.dist.Backend._plugins["KIT_FOUR"].creator_fn, "second", "the function")
    finally:
        _unregister(k, "kit_four")


@script("2.2", "register_backend/what_creators_get", fresh=True)
def _creators(k: Kit) -> None:
    """A plain creator gets store, rank, size and limit; an extended one an options object."""
    given: list[Any] = []

    def plain(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        given.append((rank, size, timeout))
        return k.dist.ProcessGroup(rank, size)

    def extended(options: Any, pg_options: Any) -> Any:
        given.append((options.group_rank, options.group_size, options.timeout, list(options.global_ranks_in_group)))
        return k.dist.ProcessGroup(options.group_rank, options.group_size)

    limit = timedelta(seconds=7)
    try:
        _register(k, "kit_five", plain, devices=["cpu"])
        _register(k, "kit_six", extended, devices=["cpu"], extended_api=True)
        for name in ("kit_five", "kit_six"):
            k.dist.init_process_group(name, store=k.torch.distributed.HashStore(), rank=0, world_size=1, timeout=limit)
            k.dist.destroy_process_group()
        k.equal(given[0], (0, 1, limit), "what a plain creator gets")
        k.equal(given[1][:3], (0, 1, limit), "what an extended creator gets")
    finally:
        for name in ("kit_five", "kit_six"):
            _unregister(k, name)


@script("2.3", "BackendConfig/texts")
def _configs(k: Kit) -> None:
    """One name covers its devices; pairs stand as written; bad pairs are refused."""
    config = k.dist.distributed_c10d.BackendConfig
    kind = k.dist.Backend
    k.equal(repr(config(kind("gloo"))), "cpu:gloo,cuda:gloo", "the config of gloo")
    k.equal(repr(config(kind("nccl"))), "cuda:nccl", "the config of nccl")
    pairs = "cpu:gloo,cuda:nccl"
    k.equal(repr(config(kind(pairs))), pairs, "the config of pairs")
    k.equal(config(kind(pairs)).get_device_backend_map()["cuda"], "nccl", "cuda's backend")
    for bad in ("cpu:gloo:x", "cpu:gloo,cuda"):
        with k.raises(ValueError, "device:backend|format|Invalid"):
            config(kind(bad))
    with k.raises(ValueError, "Duplicate"):
        config(kind("cpu:gloo,cpu:gloo"))


@script("2.4", "get_default_backend_for_device/names")
def _device_defaults(k: Kit) -> None:
    """Each device has the backend that torch names, as a text and as a device."""
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
        k.equal(ask(name), built, f"is_backend_available({name!r})")
        k.equal(ask(name.upper()), built, f"is_backend_available({name.upper()!r})")
    k.equal(ask("unheard_of"), False, "the availability of an unknown name")
    k.equal(ask("cpu:gloo,cuda:unheard_of"), False, "the availability of a pair with an unknown name")


@script("2.6", "is_initialized/before_and_after", fresh=True)
def _initialised(k: Kit) -> None:
    """True between init and destroy."""
    k.equal(k.dist.is_initialized(), False, "is_initialized() before")
    k.init()
    k.equal(k.dist.is_initialized(), True, "is_initialized() after")
    k.dist.destroy_process_group()
    k.equal(k.dist.is_initialized(), False, "is_initialized() after the end")


@script("2.6", "get_node_local_rank/sources", fresh=True)
def _local_rank(k: Kit) -> None:
    """LOCAL_RANK wins over the fallback; without both there is an error."""
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
    """True if torchrun's variable is set."""
    with environment({"TORCHELASTIC_RUN_ID": None}):
        k.equal(k.dist.is_torchelastic_launched(), False, "without the variable")
    with environment({"TORCHELASTIC_RUN_ID": "7"}):
        k.equal(k.dist.is_torchelastic_launched(), True, "with the variable")


@script("2.7", "get_backend/default_and_part", (1, 4))
def _get_backend(k: Kit) -> None:
    """In lower case, for the default group and for a part; a non-member has none."""
    k.equal(k.dist.get_backend(), k.backend, "get_backend()")
    k.check(k.backend in k.dist.get_backend_config(), f"the config is {k.dist.get_backend_config()}")
    k.equal(k.dist.get_backend_config(), k.dist.get_backend_config().lower(), "the config")
    if k.size == 4:
        part = k.group("part")
        if k.rank in (1, 3):
            k.equal(k.dist.get_backend(part), k.backend, "get_backend() of a part")
        else:
            with k.raises(ValueError, "Invalid process group"):
                k.dist.get_backend(part)


@script("2.8", "get_rank/default_and_part", (1, 4, 5))
def _get_rank(k: Kit) -> None:
    """The rank and the size in the default group, in a part, and -1 for a non-member."""
    k.equal((k.dist.get_rank(), k.dist.get_world_size()), (k.rank, k.size), "rank and size")
    if k.size >= 4:
        part = k.group("part")
        inside = k.rank % 2 == 1
        k.equal(k.dist.get_rank(part), k.rank // 2 if inside else -1, "the rank in the part")
        k.equal(k.dist.get_world_size(part), k.size // 2 if inside else -1, "the size of the part")


@script("2.9", "get_global_rank/inverse_of_group_rank", (4, 7))
def _translate(k: Kit) -> None:
    """Both directions are inverse on a part whose ranks differ; others are refused."""
    part = k.group("part")
    if k.rank % 2 == 0:
        return
    for place, rank in enumerate(range(1, k.size, 2)):
        k.equal(k.dist.get_global_rank(part, place), rank, f"the global rank of {place}")
        k.equal(k.dist.get_group_rank(part, rank), place, f"the rank in the group of {rank}")
    with k.raises(ValueError, "not part of group"):
        k.dist.get_group_rank(part, 0)
    with k.raises(ValueError, "not part of group"):
        k.dist.get_global_rank(part, k.size)
    k.equal(k.dist.get_global_rank(k.dist.group.WORLD, k.rank), k.rank, "the global rank in the default group")


@script("2.10", "get_process_group_ranks/in_group_order", (4, 5))
def _group_ranks(k: Kit) -> None:
    """Global ranks in the order of their ranks in the group; None is the default group."""
    k.equal(k.dist.get_process_group_ranks(None), list(range(k.size)), "the ranks of None")
    part = k.group("part")
    if k.rank % 2:
        k.equal(k.dist.get_process_group_ranks(part), list(range(1, k.size, 2)), "the ranks of a part")


@script("2.11", "get_pg_count/counts", (1, 2), fresh=True)
def _count(k: Kit) -> None:
    """1 after init, one more per new_group on members and others alike, 0 after the end."""
    k.init()
    k.equal(k.dist.get_pg_count(), 1, "the count after init")
    k.dist.new_group([0])
    k.equal(k.dist.get_pg_count(), 2, "the count after new_group")
    k.dist.destroy_process_group()
    k.equal(k.dist.get_pg_count(), 0, "the count at the end")


@script("2.12", "reduce_op/warns")
def _reduce_op(k: Kit) -> None:
    """A warning on each attribute, with the values of ReduceOp."""
    for name in ("SUM", "PRODUCT", "MIN", "MAX"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = getattr(k.dist.reduce_op, name)
        k.check(any(one.category is FutureWarning for one in caught), f"no FutureWarning for {name}")
        k.equal(found, getattr(k.dist.ReduceOp, name), name)


_OPTIONS: dict[str, dict[str, Any]] = {
    "AllToAllOptions": {},
    "AllreduceCoalescedOptions": {"reduceOp": None},
    "AllreduceOptions": {"reduceOp": None},
    "BarrierOptions": {},
    "BroadcastOptions": {"rootRank": 0},
    "GatherOptions": {"rootRank": 0},
    "ReduceOptions": {"rootRank": 0, "reduceOp": None},
    "ReduceScatterOptions": {"reduceOp": None},
    "ScatterOptions": {"rootRank": 0},
}


def _options(name: str, k: Kit) -> None:
    """An option class comes from distributed_c10d and has the fields that the functions set."""
    kind = k.need(name)
    k.equal(kind.__module__, "torch.distributed.distributed_c10d", f"{name}.__module__")
    options = kind()
    k.check(isinstance(options.timeout, timedelta), "timeout is no timedelta")
    options.timeout = timedelta(seconds=3)
    k.equal(options.timeout, timedelta(seconds=3), "the limit that was set")
    k.check(hasattr(options, "asyncOp"), "asyncOp is missing")
    for field in _OPTIONS[name]:
        k.check(hasattr(options, field), f"{field} is missing")


for _name in _OPTIONS:
    script("2.13", f"{_name}/fields")(partial(_options, _name))


@script("2.13", "names/modules")
def _modules(k: Kit) -> None:
    """Classes of the C++ module say that they come from distributed_c10d."""
    for name in ("PrefixStore", "ProcessGroup", "ReduceOp", "Store", "DebugLevel", "Work"):
        k.equal(getattr(k.c10d, name).__module__, "torch.distributed.distributed_c10d", f"{name}.__module__")
    k.check(k.c10d.get_debug_level() in k.c10d.DebugLevel.__members__.values(), "get_debug_level() is no DebugLevel")


@script("2.13", "allreduce/options_are_obeyed", (2, 3))
def _obeyed(k: Kit) -> None:
    """A method of the group obeys the operation and the root of its options."""
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
    """30 minutes, and 10 for nccl."""
    k.equal(k.c10d.default_pg_timeout, timedelta(minutes=30), "default_pg_timeout")
    k.equal(k.c10d._get_default_timeout("gloo"), timedelta(minutes=30), "the limit of gloo")
    if k.dist.is_nccl_available():
        k.equal(k.c10d._get_default_timeout("nccl"), timedelta(minutes=10), "the limit of nccl")


@script("2.15", "private_names/that_suites_use")
def _private(k: Kit) -> None:
    """Private functions that suites of tests use."""
    k.check(isinstance(k.c10d._get_default_store(), k.dist.Store), "_get_default_store() is no store")
    k.equal(k.c10d._get_object_coll_device(), k.device.type, "the device of objects")
    k.check(k.c10d._get_pg_config() is not None, "_get_pg_config() is None")
    k.check(len(k.c10d._world.pg_config_info) >= 1, "pg_config_info is empty")


@script("2.16", "_set_pg_timeout/refusals")
def _set_limit(k: Kit) -> None:
    """Neither another object nor the handle of a non-member is taken."""
    with k.raises(ValueError, "Invalid process group"):
        k.c10d._set_pg_timeout(timedelta(seconds=5), k.dist.GroupMember.NON_GROUP_MEMBER)
    with k.raises(AssertionError):
        k.c10d._set_pg_timeout(timedelta(seconds=5), "no group")
