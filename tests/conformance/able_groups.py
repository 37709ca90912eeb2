"""Plug-ins in Python that can split and shrink their groups, for the cells of `split_group` and `shrink_group`.

torch asks the backend object whether it can, and calls its `shrink`; a subclass of gloo's in Python answers both.
Until 2.14, torch's `split_group` refuses every group without a bound device and an accelerator, so "splitting" brings a
device in Python. Its groups make their parts in Python, too: C++ would call gloo's.

With `KIT_MUTANT=order` the ranks of a part are numbered backwards.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_DEVICE = "able"
# C++ gives the object in Python back while something refers to it.
_kept: list[Any] = []

_setup_privateuseone_for_python_backend(_DEVICE)


def _place(ranks: list[int], rank: int) -> int:
    place = ranks.index(rank)
    return len(ranks) - 1 - place if os.environ.get("KIT_MUTANT") == "order" else place


class ShrinkingGloo(ProcessGroupGloo):
    """Gloo that can do what its group asks for."""

    supports_splitting = True
    supports_shrinking = True
    # `split_group` copies them, which it cannot do with those of gloo.
    options = "the parent's"  # type: ignore[assignment]

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        """Make the backend of one group."""
        super().__init__(store, rank, size, timeout)
        self._store = store
        self._timeout = timeout
        _kept.append(self)

    def shrink(self, excluded: list[int], flags: int, options: Any) -> ShrinkingGloo:
        """Return a backend of the ranks that are left."""
        left = [rank for rank in range(self.size()) if rank not in excluded]
        store = PrefixStore(f"without {excluded}", self._store)
        return ShrinkingGloo(store, _place(left, self.rank()), len(left), self._timeout)


class SplittingGroup(dist.ProcessGroup):
    """A group that makes groups of its parts."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        """Make a group with one backend for both devices."""
        # Of the forms of the constructor, the only one that a class in Python can call.
        super().__init__(rank, size)  # type: ignore[call-arg]
        backend = ShrinkingGloo(store, rank, size, timeout)
        for device in ("cpu", _DEVICE):
            self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.GLOO, backend)
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self.bound_device_id = torch.device(_DEVICE, 0)
        self._store = store

    def get_group_store(self) -> Any:
        """Return the store of the group."""
        return self._store

    def split_group(self, ranks: list[int], **more: Any) -> SplittingGroup | None:  # type: ignore[override]
        """Return a group of these ranks of this group; None on a rank that is not among them."""
        if self.rank() not in ranks:
            return None
        if more["opts"] != ShrinkingGloo.options:
            raise ValueError(f"opts = {more['opts']}; expected those of the parent")
        store = PrefixStore(more["group_name"], self._store)
        made = SplittingGroup(store, _place(ranks, self.rank()), len(ranks), more["timeout"])
        made._set_group_name(more["group_name"])
        made._set_group_desc(more["group_desc"] or "undefined")
        _kept.append(made)
        return made


dist.Backend.register_backend("shrinking", ShrinkingGloo, devices=["cpu"])
dist.Backend.register_backend("splitting", SplittingGroup, devices=["cpu", _DEVICE])
