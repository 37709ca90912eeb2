"""The ways to get a wrapped process group, and a torch that cannot wrap."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, cast

import torch.distributed as dist
from torch._C._distributed_c10d import Backend, PrefixStore, _ProcessGroupWrapper, set_debug_level_from_env
from torch.distributed import distributed_c10d as c10d

if TYPE_CHECKING:
    import pytest

    from dist_testing import World

# Limit in seconds of every operation that must end by itself. It is far above what a loaded machine needs, and below
# the limit of a case.
GROUP_TIMEOUT_S = 30.0

# Not torch's number, which is 2.
GLOO_THREADS = 3


def debug_detail_group(world: World, timeout_s: float = GROUP_TIMEOUT_S) -> dist.ProcessGroup:
    """Create a group of all ranks that torch wraps, because debugging is on at that moment.

    `timeout_s` is the limit of the group and of the wrapper's checks, in seconds.
    """
    set_debug_level("DETAIL")
    # The limit also holds for the connections that are made here. All ranks start together, so that a late rank does
    # not use up a short limit.
    world.barrier()
    group = new_group(world, timeout_s)
    assert is_wrapped(group, world), "torch did not wrap a group made under debug level DETAIL"
    return group


def explicit_group(world: World, timeout_s: float = GROUP_TIMEOUT_S) -> dist.ProcessGroup:
    """Create a backend of all ranks that is wrapped by hand, with debugging off. See `wrap`."""
    set_debug_level("OFF")
    world.barrier()
    # A backend has the same collective methods as the process group that uses it.
    return cast("dist.ProcessGroup", wrap(backend_by_hand(world), world, timeout_s))


def backend_by_hand(world: World, timeout_s: float = GROUP_TIMEOUT_S) -> Backend:
    """Construct a backend of all ranks from its class, without a process group and without torch's registry.

    `timeout_s` is the limit of its operations, in seconds.
    """
    backend = _BY_HAND[world.backend](world, timedelta(seconds=timeout_s))
    assert not isinstance(backend, _ProcessGroupWrapper), "torch wrapped a backend that is made by hand"
    # `new_group` does it for its backends. The wrapper's reports have the number.
    backend._set_sequence_number_for_group()
    return cast(Backend, backend)


def _gloo_by_hand(world: World, timeout: timedelta) -> Any:
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    # The interface by which the ranks reach each other: the loopback reaches only those of the own node.
    options._devices = [gloo.create_device(interface=os.environ["GLOO_SOCKET_IFNAME"])]
    options._threads = GLOO_THREADS
    options._timeout = timeout
    return gloo(PrefixStore("by_hand", world.store), world.rank, world.size, options)


def _nccl_by_hand(world: World, timeout: timedelta) -> Any:
    nccl: Any = dist.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = timeout
    return nccl(PrefixStore("by_hand", world.store), world.rank, world.size, options)


_BY_HAND = {"gloo": _gloo_by_hand, "nccl": _nccl_by_hand}


def new_group(world: World, timeout_s: float = GROUP_TIMEOUT_S) -> dist.ProcessGroup:
    """Create a group of all ranks, wrapped or not as torch's debug level says; `timeout_s` is its limit, in seconds."""
    group = dist.new_group(backend=world.backend, timeout=timedelta(seconds=timeout_s))
    assert isinstance(group, dist.ProcessGroup), group
    return group


def wrap(backend: Backend, world: World, timeout_s: float = GROUP_TIMEOUT_S) -> _ProcessGroupWrapper:
    """Put torch's wrapper around a backend of all ranks; torch raises AssertionError if it has no gloo.

    `timeout_s` is the limit of the wrapper's checks, in seconds.
    """
    wrapper = c10d._create_process_group_wrapper(
        wrapped_pg=backend,
        store_prefix="explicit",
        store=world.store,
        rank=world.rank,
        world_size=world.size,
        timeout=timedelta(seconds=timeout_s),
    )
    assert isinstance(wrapper, _ProcessGroupWrapper), wrapper
    return wrapper


def is_wrapped(group: dist.ProcessGroup, world: World) -> bool:
    """Return whether torch's wrapper is around the backend that a group has for the world's device."""
    return isinstance(group._get_backend(world.device), _ProcessGroupWrapper)


def set_debug_level(level: Literal["OFF", "DETAIL"]) -> None:
    """Set `TORCH_DISTRIBUTED_DEBUG` for this rank, as if it had been set before the rank started."""
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = level
    set_debug_level_from_env()


def take_gloo_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Change `distributed_c10d` to its state after an import on a torch built without gloo."""
    monkeypatch.setattr(c10d, "_GLOO_AVAILABLE", False)
    monkeypatch.delattr(c10d, "ProcessGroupGloo")
    monkeypatch.delattr(c10d, "_ProcessGroupWrapper")
