"""The state that the ranks of one group share: its open collectives, sends and receives, and who has left."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from torch import Tensor

from dist_testing.core.ground.error_text import ranks_text
from dist_testing.core.ground.errors import CollectiveError, UsageError
from dist_testing.threaded.data import Share, UnequalError, copy, run_move
from dist_testing.threaded.members import Member, ThreadWorld
from dist_testing.threaded.operation import Call, Collective, Failure, GroupLabel, Operation, Transfer, sentence

# Does the work of a collective when every rank has called it. Gets their shares, in the order of ranks.
Move: TypeAlias = Callable[[Sequence[Share]], None]


class SharedGroup:
    """The state that the ranks of one group share. A rank is named by its number in the group, from 0.

    Collectives are matched by the order of calls: the k-th collective call of each rank belongs to collective k, as in
    c10d. Sends and receives are matched by rank and tag. A call raises `PeerFailedError` once a rank of the world has
    failed.
    """

    def __init__(self, world: ThreadWorld, name: str, label: GroupLabel) -> None:
        # The key under which the world keeps it.
        self.name = name
        self.label = label
        self.size = len(label.ranks)
        # How many collectives each rank has called: c10d's sequence numbers.
        self.calls_made = [0] * self.size
        self._world = world
        self._members: dict[int, Member] = {}
        self._gone: set[int] = set()
        self._splits_made = [0] * self.size
        self._collectives: dict[int, Collective] = {}
        # By receiver; in the order of the calls.
        self._transfers: defaultdict[int, list[Transfer]] = defaultdict(list)

    @classmethod
    def joined(cls, world: ThreadWorld, name: str, label: GroupLabel, rank: int, member: Member) -> SharedGroup:
        """Return the group of that name, which the first rank that asks creates, with `member` as its rank `rank`."""
        with world:
            if (shared := world.groups.get(name)) is None:
                shared = world.groups[name] = cls(world, name, label)
            assert isinstance(shared, cls)
            fits = shared.label.ranks == label.ranks
            # The number of a rank is known only in a group of the same ranks.
            is_first = fits and shared._members.setdefault(rank, member) is member
        if not fits:
            raise UsageError(
                f"{sentence(label.title)} has {ranks_text(label.ranks)} on one rank and "
                f"{ranks_text(shared.label.ranks)} on another.\n"
                "Most likely the ranks passed different world sizes or lists of ranks.\n"
                "Pass the same world_size to init_process_group, and the same ranks to new_group, on every rank."
            )
        if not is_first:
            raise UsageError(
                f"Two threads are rank {rank} of {label.title}.\n"
                "Each rank of a group has its own number and creates the group once.\n"
                "Pass a different rank to each init_process_group call that uses the same store."
            )
        return shared

    def leave(self, rank: int) -> None:
        """Remove a rank that has destroyed the group; fail the operations that still need it."""
        with self._world:
            self._lose(rank)
            if len(self._gone) == self.size:
                self._world.groups.pop(self.name, None)

    def end_member(self, member: Member) -> None:
        """Fail the operations that need a rank of the world whose threads have all ended."""
        for rank, own in self._members.items():
            if own is member:
                self._lose(rank)

    def _lose(self, rank: int) -> None:
        self._gone.add(rank)
        for collective in self._collectives.values():
            if rank not in collective.calls:
                self._world.finish(collective, collective.lost(rank))
        for transfers in self._transfers.values():
            for transfer in transfers:
                if transfer.peer == rank:
                    self._world.finish(transfer, transfer.lost())

    def split(self, rank: int, ranks: Sequence[int]) -> SharedGroup | None:
        """Let a rank take part in a split by ranks of this group; return the new group, or None if it is no member.

        The k-th split call of each rank with the same ranks gives the same new group.
        """
        self._splits_made[rank] += 1
        if rank not in ranks:
            return None
        name = f"{self.name}:split{self._splits_made[rank]}:{','.join(map(str, ranks))}"
        label = GroupLabel(f"a split of {self.label.title}", tuple(self.label.ranks[own] for own in ranks))
        return self.joined(self._world, name, label, ranks.index(rank), self._members[rank])

    def pending(self) -> Iterator[Operation]:
        """Yield the operations that are not done."""
        yield from self._collectives.values()
        for transfers in self._transfers.values():
            yield from transfers

    def meet(self, rank: int, call: Call, share: Share, move: Move) -> Collective:
        """Make a rank's next collective call. Does not wait for other ranks; the last rank to call does the work.

        Calls with equal signatures pass equivalent moves. The collective that it returns may have failed already.
        """
        world = self._world
        with world:
            number = self.calls_made[rank]
            collective = self._collectives.get(number)
            # A collective that has already failed for other ranks gives this rank the same error, not its consequence.
            if world.failure is not None and (collective is None or not collective.is_done):
                raise world.failure.error(call)
            self.calls_made[rank] = number + 1
            if collective is None:
                collective = self._collectives[number] = Collective(self.label, number, call.signature)
            collective.calls[rank] = call
            if is_complete := len(collective.calls) == self.size:
                del self._collectives[number]
            if collective.is_done:
                return collective
            collective.shares[rank] = share
            failure = None
            if call.signature != collective.signature:
                failure = collective.mismatch("the calls of its ranks differ")
            elif gone := self._gone - collective.calls.keys():
                failure = collective.lost(min(gone))
            if failure is not None:
                world.finish(collective, failure)
        if is_complete and failure is None:
            shares = [collective.shares[rank] for rank in range(self.size)]
            # Works keep the collective alive for longer; they need no shares.
            collective.shares = {}
            tensors = (tensor for share in shares for tensor in (*share.outputs, *share.inputs))
            failure = _moved(lambda: sentence(collective.title()), collective.mismatch, tensors, move, shares)
            with world:
                world.finish(collective, failure)
        return collective

    def transfer(self, own: Transfer) -> None:
        """Start a send or a receive. Does not wait for the other rank; the second of the two does the copy.

        The `peer` of a receive from any rank is set when it is paired.
        """
        world = self._world
        with world:
            if world.failure is not None:
                raise world.failure.error(own.call)
            waiting = self._transfers[own.peer if own.is_send else own.rank]
            # Transfers that failed, by a time limit or otherwise, are still on the list.
            waiting[:] = [other for other in waiting if not other.is_done]
            other = next((other for other in waiting if own.meets(other)), None)
            if other is not None:
                waiting.remove(other)
                own.peer, other.peer = other.rank, own.rank
            elif own.peer in self._gone:
                world.finish(own, own.lost())
            else:
                waiting.append(own)
        if other is not None:
            send, receive = (own, other) if own.is_send else (other, own)
            tensors = receive.tensor, send.tensor
            failure = _moved(
                lambda: f"A send and its receive in {own.title()}",
                partial(own.mismatch, other),
                tensors,
                copy,
                *tensors,
            )
            with world:
                world.finish(other, failure)
                world.finish(own, failure)


def _moved(
    subject: Callable[[], str],
    mismatch: Callable[[str], Failure],
    tensors: Iterable[Tensor],
    move: Callable[..., None],
    *args: object,
) -> Failure | None:
    """Move the data of an operation, which has these tensors; return why that failed."""
    try:
        run_move(move, *args, tensors=tensors)
    except UnequalError as error:
        return mismatch(str(error))
    except Exception as error:
        return Failure(
            CollectiveError,
            f"{subject()} failed: {type(error).__name__}: {error}\n"
            "Most likely torch cannot read or write one of the tensors, such as an output made by expand().\n"
            "Look at the tensors that the ranks pass to this call.",
            names_call=True,
        )
    return None
