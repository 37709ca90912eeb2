"""Section 3 of the contract: the ways by which ranks find each other, and the backends that a group can have."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import warnings
from datetime import timedelta

from dist_testing.conformance.kit import Kit
from dist_testing.conformance.rows.registry import script
from dist_testing.core.ground.environment import set_variables


def _port(k: Kit) -> int:
    """Return a port of loopback that is free, the same on all ranks."""
    if k.rank == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            k.world.store.set(k.key("port"), str(free.getsockname()[1]))
    return int(k.world.store.get(k.key("port")))


@script("3.2", "init_process_group/tcp_method", (1, 2), fresh=True)
def _tcp(k: Kit) -> None:
    address = f"tcp://127.0.0.1:{_port(k)}"
    k.dist.init_process_group(k.backend, init_method=address, rank=k.rank, world_size=k.size)
    k.check_sum()
    k.dist.destroy_process_group()


@script("3.2", "init_process_group/env_method", (1, 2), fresh=True)
def _env(k: Kit) -> None:
    """The address is in the environment; rank and size are there or are arguments."""
    values = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_port(k))}
    own = {"rank": k.rank, "world_size": k.size} if k.size > 1 else {}
    if not own:
        values |= {"RANK": "0", "WORLD_SIZE": "1"}
    # Ranks may share one environment.
    before = {name: os.environ.get(name) for name in values}
    k.meet()
    set_variables(values)
    k.dist.init_process_group(k.backend, init_method="env://", **own)
    k.check_sum()
    k.dist.destroy_process_group()
    k.meet()
    set_variables(before)


@script("3.4", "init_process_group/one_device_of_a_backend", (2,), fresh=True)
def _pair(k: Kit) -> None:
    """A pair of device and name makes a group for that device, and the pair is its name."""
    pair = f"{k.device.type}:{k.backend}"
    k.dist.init_process_group(pair, store=k.world.store, rank=k.rank, world_size=k.size)
    k.equal((k.dist.get_backend(), k.dist.get_backend_config()), (pair, pair), "get_backend() and the config")
    k.check_sum()


@script("3.4", "init_process_group/no_backend", fresh=True)
def _no_backend(k: Kit) -> None:
    """Without a name each device has torch's default."""
    k.dist.init_process_group(store=k.world.store, rank=0, world_size=1)
    k.check("cpu:gloo" in k.dist.get_backend_config(), f"the config is {k.dist.get_backend_config()}")
    ones = k.torch.ones(2)
    k.dist.all_reduce(ones)
    k.equal(ones, [1.0, 1.0], "the sum of one rank")


@script("3.7", "{}/barrier_at_the_end", (2,), each=("init_process_group", "new_group"), fresh=True)
def _barrier_at_the_end(k: Kit, what: str) -> None:
    if what == "new_group":
        k.init()
        k.meet()
    # Ranks may share one environment, so none removes the variable before all have used it.
    set_variables({"TORCH_DIST_INIT_BARRIER": "1"})
    if k.rank == 1:
        time.sleep(0.3)
        k.world.store.set(k.key("called"), "1")
    k.init() if what == "init_process_group" else k.dist.new_group()
    called = k.world.store.check([k.key("called")])
    k.meet()
    set_variables({"TORCH_DIST_INIT_BARRIER": None})
    k.check(called, f"{what} returned before the other rank had called it")


@script("3.10", "destroy_process_group/in_a_coalescing_block{}", each=("", "_of_all"), fresh=True)
def _destroy_collecting(k: Kit, what: str) -> None:
    """Calls that a block has collected end with the group, and not in the next one."""
    k.init()
    group = k.dist.new_group()
    ended = contextlib.suppress(KeyError, RuntimeError, ValueError)
    with ended, warnings.catch_warnings(record=True, action="always") as caught, k.c10d._coalescing_manager(group):
        k.dist.all_reduce(k.tensor(1), group=group)
        k.dist.destroy_process_group(None if what else group)
    k.equal(len(k.c10d._world.pg_coalesce_state), 0, "the groups whose calls are still collected")
    if what:
        k.init(store=k.dist.HashStore())
    else:
        k.check(any("coalesced" in str(one.message) for one in caught), "no warning")
    k.check_sum()


@script("4.1", "new_group/limit_and_options", (2,), fresh=True)
def _limit(k: Kit) -> None:
    """The limit of a group is its own, and not that of the default group."""
    k.init(60)
    for more in ({"timeout": timedelta(seconds=7)}, {}):
        backend = k.dist.new_group(**more)._get_backend(k.device)
        if (options := getattr(backend, "options", None)) is not None:
            wanted = more.get("timeout", k.c10d._get_default_timeout(k.backend))
            k.equal(options._timeout, wanted, "the limit of the group")
