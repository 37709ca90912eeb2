"""Rank info: a process's rank in an attached world, and the store by which its ranks find each other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from dist_testing.errors import UsageError
from dist_testing.spec import MAX_WORLD_SIZE

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

# Limit for every rank to collect the tests and connect: from a cold disk the import of torch takes a minute. Seconds.
ATTACH_LIMIT_S = 300.0

_CAUSE_AND_WAY_OUT = (
    "With RANK set, this process is a rank of an existing world, as torchrun makes one.\n"
    "Start it with torchrun; or unset RANK, and the library starts the ranks itself."
)
_NEEDED = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class RankInfo:
    """A process's rank in an attached world.

    Attributes:
        rank: From 0. Rank 0 is also the runner.
        size: Ranks in the world.
        address: Host of the store that all ranks use.
        port: Port of the store.
        is_served: Whether torchrun's agent serves the store already; else rank 0 serves it.
        attempt: Distinguishes this start of the world from torchrun's earlier ones.
    """

    rank: int
    size: int
    address: str
    port: int
    is_served: bool
    attempt: str

    def store(self) -> Store:
        """Connect to the store, under a prefix of keys of our own.

        It is independent of the groups of the tests, so it works also if those fail.
        """
        from torch._C._distributed_c10d import PrefixStore, TCPStore

        store = TCPStore(
            self.address,
            self.port,
            self.size,
            is_master=self.rank == 0 and not self.is_served,
            timeout=timedelta(seconds=ATTACH_LIMIT_S),
            wait_for_workers=False,
            # Later stores of rank 0 at this port, such as that of env://, then share the server.
            multi_tenant=True,
        )
        return PrefixStore(f"dist_testing/{self.attempt}", store)

    def announce(self) -> None:
        """Tell rank 0 the number of this process, so that it need not wait for a rank that ends during the collection.

        Does nothing if rank 0 serves the store itself: it does so only after its own collection.
        """
        if self.rank and self.is_served:
            # Without a store rank 0 cannot be found either, which is reported then.
            with contextlib.suppress(RuntimeError):
                self.store().set(pid_key(self.rank), str(os.getpid()))


def pid_key(rank: int) -> str:
    """Return the key in the store of the number of a rank's process."""
    return f"pid/{rank}"


def rank_info_in(env: Mapping[str, str]) -> RankInfo | None:
    """Return this process's rank info from torchrun's variables; None if RANK is not set.

    Args:
        env: Environment variables.

    Raises:
        UsageError: If the variables are incomplete or impossible.
    """
    if "RANK" not in env:
        return None
    if missing := [name for name in _NEEDED if name not in env]:
        raise UsageError(f"RANK={env['RANK']} is set without {', '.join(missing)}.\n{_CAUSE_AND_WAY_OUT}")
    size = _number(env, "WORLD_SIZE", 1, MAX_WORLD_SIZE)
    local_size = _number(env, "LOCAL_WORLD_SIZE", 1, MAX_WORLD_SIZE) if "LOCAL_WORLD_SIZE" in env else size
    if local_size != size:
        raise UsageError(
            f"WORLD_SIZE={size} and LOCAL_WORLD_SIZE={local_size}: the world spans several machines.\n"
            "The ranks of a world must be on one machine: nothing may listen on the network.\n"
            f"Start torchrun with --nnodes=1 --nproc-per-node={size}."
        )
    return RankInfo(
        rank=_number(env, "RANK", 0, size - 1),
        size=size,
        address=env["MASTER_ADDR"],
        port=_number(env, "MASTER_PORT", 1, 65535),
        is_served=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=f"{env.get('TORCHELASTIC_RUN_ID', '')}/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}",
    )


def _number(env: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = env[name]
    if text.isascii() and text.isdecimal() and least <= int(text) <= most:
        return int(text)
    raise UsageError(f"{name}={text!r}: expected a number from {least} to {most}.\n{_CAUSE_AND_WAY_OUT}")
