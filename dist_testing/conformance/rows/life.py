"""Section 3 of the contract: init_process_group, destroy, abort; and the rows about time limits and absence."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import sys
import time
import warnings
from datetime import timedelta
from typing import Any

from dist_testing.conformance.kit import Kit
from dist_testing.conformance.rows import script
from dist_testing.conformance.rows.shared_rules import ARGUMENTS, call
from dist_testing.core.ground.environment import environment, set_variables


@script("3.1", "init_process_group/twice", init=True)
def _twice(k: Kit) -> None:
    with k.raises(ValueError, "initialize the default process group twice"):
        k.init()


@script("3.1", "init_process_group/bad_arguments", fresh=True)
def _bad(k: Kit) -> None:
    with k.raises(AssertionError):
        k.init(init_method="env://")
    for name in ("world_size", "rank"):
        with k.raises((AssertionError, ValueError), name):
            k.init(**{name: -1})
    for limit in (5, 5.0):
        with k.raises(TypeError, "Expected timeout argument"):
            k.init(timeout=limit)
    k.init()
    k.check_sum()


@script("3.2", "init_process_group/{}_store", (1, 3), each=("prefix", "file"), fresh=True)
def _store(k: Kit, what: str) -> None:
    path = str(k.world.tmp_path / "store")
    k.init(store=k.dist.PrefixStore("kit", k.world.store) if what == "prefix" else k.dist.FileStore(path, k.size))
    k.check_sum()


def _port(k: Kit) -> str:
    """Return a port of loopback that is free, the same on all ranks."""
    if k.rank == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            k.world.store.set(k.key("port"), str(free.getsockname()[1]))
    return str(k.world.store.get(k.key("port")).decode())


@script("3.2", "init_process_group/file_method", (2,), fresh=True)
@script("3.2", "init_process_group/tcp_method", (1, 2), fresh=True)
def _url(k: Kit) -> None:
    is_file, limit = k.cell.variant == "file_method", timedelta(seconds=70)
    url = f"file://{k.world.tmp_path / 'method'}" if is_file else f"tcp://127.0.0.1:{_port(k)}"
    k.dist.init_process_group(k.backend, init_method=url, rank=k.rank, world_size=k.size, timeout=limit)
    if is_file:
        k.equal(k.c10d._get_default_store().timeout, limit, "the limit of the store")
    k.check_sum()
    k.dist.destroy_process_group()


@script("3.2", "init_process_group/env_method", (1, 2), fresh=True)
def _env(k: Kit) -> None:
    """The address is in the environment; rank and size are there or are arguments."""
    values = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _port(k)}
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


@script("3.2", "init_process_group/env_names_missing_variable", fresh=True)
def _missing_variable(k: Kit) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        values: dict[str, str | None] = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
        with environment({**values, name: None}), k.raises(ValueError, name):
            k.dist.init_process_group(k.backend)


@script("3.3", "init_process_group/bad_device_id", fresh=True)
def _device_id(k: Kit) -> None:
    """The CPU is no accelerator, and a device without an index is none in particular."""
    # Since torch 2.15 the index alone is asked for.
    with k.raises(ValueError, "accelerator|valid index"):
        k.init(device_id=k.torch.device("cpu"))
    if not k.torch.accelerator.is_available():
        with k.raises(ValueError):
            k.init(device_id=0)


@script("3.4", "init_process_group/unknown_backend", fresh=True)
def _unknown(k: Kit) -> None:
    with k.raises((AssertionError, ValueError, RuntimeError), "[Uu]nknown|unheard_of"):
        k.dist.init_process_group("unheard_of", store=k.world.store, rank=0, world_size=1)


@script("3.4", "init_process_group/not_built_in", fresh=True)
def _not_built(k: Kit) -> None:
    """MPI numbers the ranks itself, and warns that the given rank is ignored."""
    for name, ask in (("mpi", k.dist.is_mpi_available), ("nccl", k.dist.is_nccl_available)):
        if not ask():
            refused = k.raises(RuntimeError, "MPI|NCCL|built|available")
            with warnings.catch_warnings(record=True, action="always") as caught, refused:
                k.dist.init_process_group(name, store=k.world.store, rank=0, world_size=1)
            k.equal(any("MPI" in str(one.message) for one in caught), name == "mpi", "whether the rank is ignored")


@script("3.4", "init_process_group/fake_needs_no_store", fresh=True)
def _fake(k: Kit) -> None:
    """The backend "fake" makes a group of any size without a store, once its module is imported."""
    __import__("torch.testing._internal.distributed.fake_pg")
    k.dist.init_process_group("fake", rank=0, world_size=64)
    k.equal(k.dist.get_world_size(), 64, "the size")


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


@script("3.6", "init_process_group/excepthook", (1, 2), fresh=True)
def _hook(k: Kit) -> None:
    """The end of the group is not asked about: torch leaves its hook in place then."""
    seen: list[Any] = []

    def former(*error: Any) -> None:
        seen.append(error)
        print("first line\nsecond line", file=sys.stderr)

    before, error = sys.excepthook, ValueError("boom")
    sys.excepthook = former
    try:
        k.init()
        with contextlib.redirect_stderr(io.StringIO()) as written:
            sys.excepthook(ValueError, error, None)
            k.check(sys.stderr is written, "the hook did not put sys.stderr back")
    finally:
        sys.excepthook = before
    k.equal(seen, [(ValueError, error, None)], "the calls of the former hook")
    expected = "".join(f"[rank{k.rank}]: {line} line\n" for line in ("first", "second"))
    k.equal(written.getvalue(), expected, "what the hook writes")


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


@script("3.9", "new_group/same_name_twice", init=True)
def _same_name(k: Kit) -> None:
    name = k.dist.group.WORLD.group_name
    with k.raises((ValueError, RuntimeError), "group name|already"):
        k.c10d._new_process_group_helper(k.size, k.rank, [0], k.dist.Backend(k.backend), k.world.store, group_name=name)


@script("3.10", "destroy_process_group/nothing_to_destroy", fresh=True)
def _nothing(k: Kit) -> None:
    """The handle of a non-member does nothing; without a default group there is an error."""
    k.dist.destroy_process_group(k.dist.GroupMember.NON_GROUP_MEMBER)
    with k.raises(AssertionError):
        k.dist.destroy_process_group()


@script("3.10", "destroy_process_group/a_part", (2, 3), init=True)
def _part(k: Kit) -> None:
    part, other = k.dist.new_group(list(range(k.size))), k.dist.new_group(list(range(k.size)))
    k.check_sum(part)
    k.dist.destroy_process_group(part)
    with k.raises(ValueError, "Invalid process group"):
        k.dist.destroy_process_group(part)
    k.check_sum(other)
    k.check_sum()


@script("3.10", "destroy_process_group/init_again_three_times", (1, 2, 3), fresh=True)
def _again(k: Kit) -> None:
    for number in range(3):
        # In a part of the store that no other call uses.
        k.init(store=k.dist.PrefixStore(str(number), k.world.store))
        k.check_sum()
        k.dist.destroy_process_group()
        k.equal(k.dist.get_pg_count(), 0, "get_pg_count()")


@script({"destroy_process_group": "3.10", "_abort_process_group": "3.11"}, "{}/leaves_nothing", init=True)
def _nothing_left(k: Kit, what: str) -> None:
    """No table has a group that is gone, and no name finds it."""
    world, end = k.c10d._world, k.need(what)
    groups = [k.dist.group.WORLD, k.dist.new_group(), k.c10d._new_group_with_tag([0], pg_tag="kit")]
    names = [group.group_name for group in groups]
    end(groups[1])
    k.check(not any(groups[1] in tagged for tagged in world.tags_to_pg.values()), "a tag has a group that is gone")
    for ask in (end, k.dist.get_backend, k.dist.get_process_group_ranks):
        with k.raises((ValueError, RuntimeError, KeyError)):
            ask(groups[1])
    for translate in (k.dist.get_group_rank, k.dist.get_global_rank):
        with k.raises(ValueError, "not registered"):
            translate(groups[1], 0)
    end()
    k.equal((k.dist.is_initialized(), k.dist.get_pg_count()), (False, 0), "is_initialized() and get_pg_count()")
    tables = ("map", "names", "group_ranks", "backend_config", "to_tag", "coalesce_state")
    full = [name for name in (*(f"pg_{name}" for name in tables), "tags_to_pg") if getattr(world, name)]
    k.equal(full, [], "the tables that have a group that is gone")
    for name in names:
        with k.raises(Exception):
            k.c10d._resolve_process_group(name)


@script("3.10", "destroy_process_group/pending_work", (2,), init=True)
def _pending(k: Kit) -> None:
    tensors = [k.tensor(k.rank + 1) for _ in range(8)]
    works = [k.dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    k.dist.destroy_process_group()
    for tensor, work in zip(tensors, works, strict=True):
        try:
            work.wait()
        except Exception:
            continue
        k.equal(tensor, [3.0], "the sum of a call that ended without an error")


@script("3.10", "destroy_process_group/in_a_coalescing_block{}", each=("", "_of_all"), init=True)
def _destroy_collecting(k: Kit, what: str) -> None:
    """Calls that a block has collected end with the group, and not in the next one."""
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


# Limit of the calls, and the latest end of one. Seconds.
_LIMIT_S = 0.5
_LATEST_S = 3.5


def _late(k: Kit, run: Any, what: str, earliest_s: float = 0.6 * _LIMIT_S) -> None:
    """Check that a call is refused by its limit: not at once, and not much later."""
    started_s = time.monotonic()
    text = k.refused(run)
    seconds = time.monotonic() - started_s
    k.check(seconds >= earliest_s, f"{what} failed before its limit: {text}")
    k.check(seconds <= _LATEST_S, f"{what} ended long after its limit: {text}")


_WAIT = ("all_gather", "all_reduce", "all_to_all_single", "barrier", "broadcast", "gather", "recv", "reduce", "scatter")


@script("1.15", "{}/limit_of_the_group", (2,), each=_WAIT, init=_LIMIT_S)
def _group_limit(k: Kit, what: str) -> None:
    k.dist.barrier()
    if k.rank == 0:
        given = (k.tensor(0),) if what == "scatter" else ARGUMENTS[what](k)
        more = {"src": 1} if what in ("recv", "broadcast", "scatter") else {}
        _late(k, lambda: call(k, what, *given, **more), what)
    k.meet()


@script("2.16", "{}/holds_for_the_next_call", (2,), each=("_set_pg_timeout", "set_timeout"), init=60)
def _set_limit(k: Kit, what: str) -> None:
    set_limit, limit = k.need(what), timedelta(seconds=_LIMIT_S)
    k.dist.barrier()
    with warnings.catch_warnings(record=True, action="always") as caught:
        set_limit(limit)
    if caught:
        # c10d passes the limit on to some backends only, and warns for others, whose groups have a method for it.
        k.dist.group.WORLD.set_timeout(limit)
    if k.rank == 0:
        _late(k, lambda: k.dist.all_reduce(k.tensor(1)), "all_reduce")
    k.meet()


@script("1.15", "wait/own_limit", (2,), init=60)
def _wait_limit(k: Kit) -> None:
    """The limit of wait() itself."""
    k.dist.barrier()
    if k.rank == 0:
        work = k.dist.irecv(k.tensor(0), src=1)
        _late(k, lambda: work.wait(timedelta(seconds=_LIMIT_S)), "wait()")
    k.meet()


@script("11.2", "{}/limit_of_the_call", (2,), each=("allreduce", "broadcast", "gather", "scatter", "reduce"), init=60)
def _own_limit(k: Kit, what: str) -> None:
    """The limit in the options of one call holds, although the group's is longer."""
    k.dist.barrier()
    if k.rank == 0:
        tensors, others = [k.tensor(1)], [k.tensor(0) for _ in range(k.size)]
        options = getattr(k.c10d, f"{what.title()}Options")()
        options.timeout = timedelta(seconds=_LIMIT_S)
        if what in ("broadcast", "scatter"):
            options.rootRank = 1
        given = {"gather": ([others], tensors), "scatter": (tensors, [])}.get(what, (tensors,))
        _late(k, lambda: getattr(k.dist.group.WORLD, what)(*given, options), what)
    k.meet()


@script("1.16", "all_reduce/a_rank_dies", (2, 3), init=1.0)
@script("1.16", "send/peer_never_connects", (2,), init=_LIMIT_S)
def _dies(k: Kit) -> None:
    """A call with a rank that is gone ends by the limit of the group: a collective, or the first message to it."""
    k.dist.barrier()
    if k.rank == k.size - 1:
        k.dist.destroy_process_group()
    elif k.cell.operation == "send":
        _late(k, lambda: k.dist.recv(k.tensor(1), src=1), "recv", earliest_s=0)
    else:
        _late(k, lambda: k.dist.all_reduce(k.tensor(1)), "all_reduce", earliest_s=0)
    k.meet()
