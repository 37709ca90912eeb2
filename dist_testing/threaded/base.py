"""The part of a rank's process group below the collectives: identity, sends and receives, coalescing, split, end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from dist_testing.core.ground.errors import UsageError
from dist_testing.threaded import BACKEND, data
from dist_testing.threaded.arguments import ArgumentError, Tensors, single, text_of
from dist_testing.threaded.data import Share
from dist_testing.threaded.meeting import Move, SharedGroup
from dist_testing.threaded.members import ThreadWorld
from dist_testing.threaded.operation import ANY_RANK, Call, Operation, Transfer
from dist_testing.threaded.work import ThreadWork


class GroupBase(dist.ProcessGroup):
    """One rank's process group object, without the collectives, which `ThreadedGroup` adds.

    Methods have the names and arguments of `torch.distributed.ProcessGroup`. Ranks in arguments are ranks of the group,
    from 0; error texts name ranks of the default group, as users do.
    """

    def __init__(self, store: Store, rank: int, shared: SharedGroup, world: ThreadWorld, timeout_s: float) -> None:
        # c10d's constructor with a store makes an object that Python cannot subclass.
        super().__init__(rank, shared.size)  # type: ignore[call-arg]  # not in torch's stubs
        self._store = store
        self._rank = rank
        self._size = shared.size
        self._shared = shared
        self._world = world
        self._timeout_s = timeout_s
        self._name = ""
        self._description = ""
        self._has_left = False
        # The works of the calls since _start_coalescing; None outside of such a block.
        self._coalesced: list[ThreadWork] | None = None

    def __repr__(self) -> str:
        return f"<ThreadedGroup {self._name!r}, rank {self._rank} of {self._size}>"

    # The base class asks its own backends for the following; this group has none.

    def _get_backend(self, device: torch.device) -> Self:  # type: ignore[override]  # no c10d backend, but what it does
        return self

    # torch asks these of a group's backend: from 2.15 on, the first one in `batch_isend_irecv`.
    supports_coalescing = True
    supports_shrinking = False
    supports_splitting = False
    supports_time_estimate = False
    _supports_time_estimate = False
    supports_abort_hooks = False
    supports_reconfigure = False
    supports_window = False

    def getBackendName(self) -> str:
        """Return the backend's name, for c10d's `name()`."""
        return BACKEND

    @property
    def group_name(self) -> str:  # type: ignore[override]  # torch's new type for it
        """The name under which torch registers the group; "" until torch has set it."""
        return self._name

    @property
    def group_desc(self) -> str:
        """The description that `torch.distributed.new_group(group_desc=...)` gave; "" without one."""
        return self._description

    def get_group_store(self) -> Store:
        """Return the group's own part of the store."""
        return self._store

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        self._description = desc

    def _get_sequence_number_for_group(self) -> int:
        return self._shared.calls_made[self._rank]

    def _set_sequence_number_for_group(self) -> None:
        pass

    # Point to point.

    def send(self, tensors: Tensors, dst: int, tag: int) -> ThreadWork:
        """Start to send a tensor; see `torch.distributed.isend`.

        There is no buffer, as with gloo: the work is done when the receiver has the tensor. Sends and receives of two
        ranks that have the same tag are paired in the order of the calls. `dst` may be this rank.

        The errors are those of the collectives (`ThreadedGroup`).
        """
        return self._transfer("send", tensors, dst, tag, is_send=True)

    def recv(self, tensors: Tensors, src: int, tag: int) -> ThreadWork:
        """Start to receive a tensor; see `torch.distributed.irecv`."""
        return self._transfer("recv", tensors, src, tag, is_send=False)

    def recv_anysource(self, tensors: Tensors, tag: int) -> ThreadWork:
        """Start to receive a tensor from any rank; see `torch.distributed.irecv` without `src`.

        The receive takes the earliest send with its tag, whichever rank it comes from. `source_rank()` of the work
        tells the sender.
        """
        return self._transfer("recv", tensors, ANY_RANK, tag, is_send=False)

    def _transfer(self, name: str, tensors: Tensors, peer: int, tag: int, *, is_send: bool) -> ThreadWork:
        self._check_is_usable(name)
        tensor = single(tensors)
        if peer != ANY_RANK:
            self._check_rank(peer)

        def detail() -> str:
            whom = "any rank" if peer == ANY_RANK else f"rank {self._global(peer)}"
            return f"{'to' if is_send else 'from'} {whom}, tag {tag}, {text_of([tensor])}"

        call = Call(name, (), detail)
        transfer = Transfer(self._shared.label, self._rank, peer, tag, tensor, call, is_send)
        data.settle([tensor])
        self._shared.transfer(transfer)
        return self._begun(transfer, call, [tensor], None)

    # Coalescing, split and end.

    def _start_coalescing(self, device: object = None) -> None:
        """Begin to collect the works of calls, for c10d's `_coalescing_manager`. Each call still starts at once."""
        self._coalesced = []

    def _end_coalescing(self, device: object = None) -> ThreadWork | None:  # type: ignore[override]  # maybe no call
        """Return one work for all calls since `_start_coalescing`; None if there was no call."""
        works, self._coalesced = self._coalesced, None
        return ThreadWork.joined(works) if works else None

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: object = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: object = None,
    ) -> Self | None:
        """Create a group of some ranks of this one; see `torch.distributed.ProcessGroup.split_group`.

        Every rank of this group has to call it, with the same `new_ranks`. The call does not wait for the others.
        The rank at index i becomes rank i of the new group; ranks that are not named get None. `opts` and
        `device_types` are ignored. By default the limit is this group's, and the name is unique in the process.
        """
        self._check_is_usable("split_group")
        for rank in new_ranks:
            self._check_rank(rank)
        if not new_ranks or len(set(new_ranks)) < len(new_ranks):
            raise ArgumentError(f"new_ranks = {list(new_ranks)}; expected one or more ranks, each once")
        split = self._shared.split(self._rank, new_ranks)
        if split is None:
            return None
        rank = list(new_ranks).index(self._rank)
        store = PrefixStore(f"{split.name}/", self._store)
        timeout_s = self._timeout_s if timeout is None else timeout.total_seconds()
        group = type(self)(store, rank, split, self._world, timeout_s)
        group._set_group_name(group_name or split.name)
        group._set_group_desc(group_desc or f"{self._description}:split")
        return group

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the time limit of later calls on this rank."""
        self._timeout_s = timeout.total_seconds()

    def shutdown(self) -> None:
        """Leave the group; `torch.distributed.destroy_process_group` calls it. Later calls change nothing.

        Calls of other ranks that still need this rank fail with `DeadlockError`.
        """
        if not self._has_left:
            self._has_left = True
            self._shared.leave(self._rank)

    abort = shutdown

    # Helpers.

    def _meet(
        self,
        name: str,
        signature: tuple[object, ...],
        share: Share,
        move: Move,
        limit_s: float | None,
        note: str = "",
        whole: Share | None = None,
    ) -> ThreadWork:
        """Make this rank's call of the collective that `torch.distributed` calls `name`.

        Beside the name, the `signature` has to be equal on all ranks. The limit is the group's by default. Error texts
        have the `note` before the tensors. `whole` has the tensors of the call if those of the share are parts of them.
        """
        self._check_is_usable(name)
        outputs, inputs, _ = whole or share
        call = Call(name, (name, *signature), lambda: f"{note}{text_of(inputs or outputs)}")
        data.settle((*outputs, *inputs))
        return self._begun(self._shared.meet(self._rank, call, share, move), call, outputs, limit_s)

    def _begun(self, operation: Operation, call: Call, results: Tensors, limit_s: float | None) -> ThreadWork:
        limit_s = self._timeout_s if limit_s is None else limit_s
        work = ThreadWork(self._world, [(operation, call)], results, limit_s)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _check_is_usable(self, name: str) -> None:
        if self._has_left:
            label = self._shared.label
            raise UsageError(
                f"{name} on {label.title}, which rank {label.ranks[self._rank]} has destroyed.\n"
                "Most likely the group was kept and used after destroy_process_group, or after the end of its test.\n"
                "Use the group before it is destroyed, or create a new one."
            )

    def _global(self, rank: int) -> int:
        return self._shared.label.ranks[rank]

    def _root(self, opts: Any, root: int | None) -> int:
        if root is None:
            root = 0 if opts is None else opts if isinstance(opts, int) else opts.rootRank
        self._check_rank(root)
        return root

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self._size:
            raise ArgumentError(f"rank {rank} of a group of {self._size}; its ranks are 0 to {self._size - 1}")

    def _one_per_rank(self, tensors: Any, what: str) -> list[Tensor]:
        # torch.distributed's functions pass a list per device of the rank; the object-style API passes one plain list.
        if tensors and not isinstance(tensors[0], Tensor):
            if len(tensors) != 1:
                raise ArgumentError(
                    f"{len(tensors)} lists of tensors; expected one, because each rank has one device here"
                )
            tensors = tensors[0]
        if len(tensors) != self._size:
            raise ArgumentError(f"{len(tensors)} tensors in a group of {self._size}; expected {what} for each rank")
        return list(tensors)

    def _check_is_whole(self, whole: Tensor, part: Tensor, whole_name: str, part_name: str) -> None:
        if whole.dtype != part.dtype or whole.numel() != part.numel() * self._size:
            raise ArgumentError(
                f"the {whole_name} is {data.tensor_text(whole)} and the {part_name} {data.tensor_text(part)}, in a "
                f"group of {self._size}; the {whole_name} holds one {part_name} per rank, of the same dtype"
            )

    def _cut(self, tensor: Tensor, sizes: Sequence[int] | Tensor | None, what: str) -> list[Tensor]:
        # torch also takes a tensor of sizes.
        sizes = [int(size) for size in (() if sizes is None else sizes)]
        if not sizes:
            if tensor.dim() == 0 or tensor.shape[0] % self._size:
                raise ArgumentError(
                    f"the {what} is {data.tensor_text(tensor)}, in a group of {self._size}; its first dimension cannot "
                    f"be cut into equal parts. Give {what}_split_sizes"
                )
            return list(tensor.detach().tensor_split(self._size))
        if len(sizes) != self._size or sum(sizes) != tensor.shape[0]:
            raise ArgumentError(
                f"{what}_split_sizes = {sizes} for {data.tensor_text(tensor)}, in a group of {self._size}; "
                "expected one size per rank, and their sum has to be the first dimension"
            )
        return list(torch.split(tensor.detach(), sizes))
