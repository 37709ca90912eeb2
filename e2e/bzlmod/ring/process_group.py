"""A process group in Python: every rank writes its part into the store, and reads the parts of the others."""

from __future__ import annotations

import os
import pickle
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future


class RingGroup(dist.ProcessGroup):
    """One rank's side of a group."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._store = store
        self._rank = rank
        self._size = size
        self._timeout = timeout
        self._calls = 0

    def getBackendName(self) -> str:
        """The name that torch knows the backend by."""
        return "ring"

    def _exchange(self, name: str, part: object) -> list[Any]:
        """Give a part to every rank, and get the parts of all ranks in their order."""
        self._calls += 1
        key = f"{self._calls}/{name}"
        self._store.set(f"{key}/{self._rank}", pickle.dumps(part))
        keys = [f"{key}/{rank}" for rank in range(self._size)]
        self._store.wait(keys, self._timeout)
        return [pickle.loads(self._store.get(one)) for one in keys]

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:
        """Sum; other operations are refused."""
        if opts is not None and opts.reduceOp != dist.ReduceOp.SUM:
            raise NotImplementedError("ring sums, and does nothing else")
        for tensor in tensors:
            tensor.copy_(torch.stack(self._exchange("all_reduce", tensor)).sum(0))
        return _done(tensors)

    def broadcast(self, tensors: Any, opts: Any = None) -> dist.Work:
        """The root's tensor for every rank; with RING_BUG, rank 0's."""
        root = opts.rootRank if opts is not None and not os.environ.get("RING_BUG") else 0
        for tensor in tensors:
            tensor.copy_(self._exchange("broadcast", tensor)[root])
        return _done(tensors)

    def barrier(self, opts: Any = None) -> dist.Work:
        """Wait for every rank."""
        self._exchange("barrier", None)
        return _done([])


def _done(result: Any) -> dist.Work:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    return _create_work_from_future(future)


dist.Backend.register_backend("ring", RingGroup, devices=["cpu"])
