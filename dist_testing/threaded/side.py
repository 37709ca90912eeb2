"""One rank's side of a group: who it is, how its calls reach the other ranks, and its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from dist_testing.errors import UsageError
from dist_testing.threaded import BACKEND, data
from dist_testing.threaded.arguments import Tensors, single, text_of
from dist_testing.threaded.meeting import ANY_RANK, Move, SharedGroup, Transfer
from dist_testing.threaded.members import ThreadWorld
from dist_testing.threaded.operation import Call, call_site
from dist_testing.threaded.work import JoinedWork, ThreadWork

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["GroupSide"]


class GroupSide(dist.ProcessGroup):
    """One rank's side of a group whose ranks are threads.

    `ThreadedGroup` adds the collectives.

    Args:
        store: The group's own part of the store that its ranks share.
        rank: This rank's number in the group.
        shared: What the ranks have in common.
        world: The world.
        timeout_s: Time limit of a call, in seconds.
    """

    def __init__(self, store: Store, rank: int, shared: SharedGroup, world: ThreadWorld, timeout_s: float) -> None:
        # With the store, c10d's constructor makes an object that Python cannot subclass.
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
        # Works of the calls since a coalescing manager began; None outside of one.
        self._coalesced: list[ThreadWork] | None = None

    def __repr__(self) -> str:
        return f"<ThreadedGroup {self._name!r}, rank {self._rank} of {self._size}>"

    # c10d asks the base class's own backends for what follows; this group has none.

    def rank(self) -> int:
        """This rank's number in the group."""
        return self._rank

    def size(self) -> int:
        """Number of ranks."""
        return self._size

    def name(self) -> str:
        """The backend's name."""
        return BACKEND

    def getBackendName(self) -> str:
        """The same, as C++ asks."""
        return BACKEND

    @property
    def group_name(self) -> str:  # type: ignore[override]  # torch's new type for it
        """What torch knows the group by."""
        return self._name

    @property
    def group_desc(self) -> str:
        """What the user called it."""
        return self._description

    def get_group_store(self) -> Store:
        """The group's part of the store."""
        return self._store

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, desc: str) -> None:
        self._description = desc

    def _get_sequence_number_for_group(self) -> int:
        return self._shared.calls_made(self._rank)

    def _set_sequence_number_for_group(self) -> None:
        pass

    # Point to point.

    def send(self, tensors: Tensors, dst: int, tag: int) -> ThreadWork:
        """Over when the receiver has the tensor: a send has no buffer."""
        return self._transfer("send", tensors, dst, tag, is_send=True)

    def recv(self, tensors: Tensors, src: int, tag: int) -> ThreadWork:
        """Over when the tensor has come."""
        return self._transfer("recv", tensors, src, tag, is_send=False)

    def recv_anysource(self, tensors: Tensors, tag: int) -> ThreadWork:
        """The same from whoever sends first; of sends that are there already, the one that was first."""
        return self._transfer("recv", tensors, ANY_RANK, tag, is_send=False)

    def _transfer(self, name: str, tensors: Tensors, peer: int, tag: int, *, is_send: bool) -> ThreadWork:
        self._check_is_usable(name)
        tensor = single(tensors)
        if peer != ANY_RANK:
            self._check_rank(peer)

        def detail() -> str:
            whom = "any rank" if peer == ANY_RANK else f"rank {self._shared.ranks[peer]}"
            return f"{'to' if is_send else 'from'} {whom}, tag {tag}, {text_of([tensor])}"

        call = Call(name, (), detail, call_site())
        transfer = Transfer(self._shared, self._rank, peer, tag, tensor, call, is_send=is_send)
        data.settle(data.accelerators([tensor]))
        self._shared.transfer(transfer)
        return self._begun(ThreadWork(self._world, transfer, call, [tensor], self._timeout_s))

    # The group's life.

    def start_coalescing(self, device: object = None) -> None:
        """Calls from here on are one; each of them goes its way at once all the same."""
        self._coalesced = []

    def end_coalescing(self, device: object = None) -> JoinedWork | None:
        """The work of all of them; None if there was none."""
        works, self._coalesced = self._coalesced, None
        return JoinedWork(works) if works else None

    _start_coalescing = start_coalescing
    _end_coalescing = end_coalescing  # type: ignore[assignment]  # None where nothing was called

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: object = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: object = None,
    ) -> Self | None:
        """A group of some of this one's ranks; None on the others. All ranks have to call it.

        Raises:
            ValueError: If `new_ranks` is empty, names a rank twice, or one that the group does not have.
        """
        for rank in new_ranks:
            self._check_rank(rank)
        if not new_ranks or len(set(new_ranks)) < len(new_ranks):
            raise ValueError(f"new_ranks = {list(new_ranks)}; expected one or more ranks, each once")
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
        """Change the time limit of the calls to come."""
        self._timeout_s = timeout.total_seconds()

    def shutdown(self) -> None:
        """This rank is done with the group. Others that wait for it are told."""
        if not self._has_left:
            self._has_left = True
            self._shared.leave(self._rank)

    abort = shutdown

    # Helpers.

    def _meet(
        self,
        name: str,
        signature: tuple[object, ...],
        detail: Callable[[], str],
        brought: object,
        move: Move,
        results: Tensors,
        limit_s: float | None,
        held: Tensors | None = None,
    ) -> ThreadWork:
        """Make this rank's side of a collective.

        Args:
            name: The function's.
            signature: What has to be the same on all ranks, beside the name.
            detail: See `Call`.
            brought: For `move`.
            move: Does the work.
            results: What the work gives.
            limit_s: Of the call; None for the group's.
            held: A tensor on each device that is brought; None if the results are.
        """
        self._check_is_usable(name)
        call = Call(name, (name, *signature), detail, call_site())
        devices = data.accelerators(results if held is None else held)
        data.settle(devices)
        collective = self._shared.meet(self._rank, call, brought, move, devices)
        return self._begun(
            ThreadWork(self._world, collective, call, results, self._timeout_s if limit_s is None else limit_s)
        )

    def _begun(self, work: ThreadWork) -> ThreadWork:
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _check_is_usable(self, name: str) -> None:
        if self._has_left:
            raise UsageError(
                f"{name} on {self._shared.title()}, which rank {self._shared.ranks[self._rank]} has destroyed.\n"
                "A group that was destroyed, or belongs to a test that has ended, was kept and used.\n"
                "Use the group before destroy_process_group, or make a new one."
            )

    def _root(self, opts: Any, root: int | None) -> int:
        if root is None:
            root = 0 if opts is None else opts if isinstance(opts, int) else opts.rootRank
        self._check_rank(root)
        return root

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self._size:
            raise ValueError(f"rank {rank} of a group of {self._size}; its ranks are 0 to {self._size - 1}")

    def _check_one_per_rank(self, tensors: Tensors, what: str) -> None:
        if len(tensors) != self._size:
            raise ValueError(f"{len(tensors)} tensors in a group of {self._size}; there has to be {what} for each rank")

    def _check_is_whole(self, whole: Tensor, part: Tensor, whole_name: str, part_name: str) -> None:
        if whole.dtype != part.dtype or whole.numel() != part.numel() * self._size:
            raise ValueError(
                f"the {whole_name} is {data.tensor_text(whole)} and the {part_name} {data.tensor_text(part)}, in a "
                f"group of {self._size}; the {whole_name} holds one {part_name} per rank, of the same dtype"
            )

    def _cut(self, tensor: Tensor, sizes: Sequence[int] | Tensor | None, what: str) -> list[Tensor]:
        # torch takes a tensor of sizes, too.
        sizes = [] if sizes is None else [int(size) for size in sizes]
        if not sizes:
            if tensor.dim() == 0 or tensor.shape[0] % self._size:
                raise ValueError(
                    f"the {what} is {data.tensor_text(tensor)}, in a group of {self._size}; its first dimension cannot "
                    f"be cut into equal parts. Give {what}_split_sizes"
                )
            return list(tensor.detach().tensor_split(self._size))
        if len(sizes) != self._size or sum(sizes) != tensor.shape[0]:
            raise ValueError(
                f"{what}_split_sizes = {sizes} for {data.tensor_text(tensor)}, in a group of {self._size}; "
                "expected one size per rank, which together are the first dimension"
            )
        return list(torch.split(tensor.detach(), sizes))
