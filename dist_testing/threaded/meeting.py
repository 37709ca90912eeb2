"""The state that the ranks of one group share: its open collectives, sends and receives, and who has left."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dist_testing.core.ground.error_text import ranks_text
from dist_testing.core.ground.errors import CollectiveError, UsageError
from dist_testing.threaded.data import UnequalError, accelerators, copy, run_move
from dist_testing.threaded.members import Member, ThreadWorld
from dist_testing.threaded.operation import (
    ANY_RANK,
    Call,
    Collective,
    Failure,
    GroupLabel,
    Operation,
    Transfer,
    sentence,
)

if TYPE_CHECKING:
    import torch

# Does the work of a collective when every rank has called it. Gets their contributions, in the order of ranks.
Move = Callable[[list[Any]], None]


class SharedGroup:
    """The state that the ranks of one group share. A rank is named by its number in the group, from 0.

    Collectives are matched by the order of calls: the k-th collective call of each rank belongs to collective k, as in
    c10d. Sends and receives are matched by rank and tag.

    Attributes:
        name: The key under which the world keeps it.
        label: How error texts name the group and its ranks.
        size: Number of ranks.
        calls_made: How many collectives each rank has called: c10d's sequence numbers.
    """

    def __init__(self, world: ThreadWorld, name: str, label: GroupLabel) -> None:
        self.name = name
        self.label = label
        self.size = len(label.ranks)
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
        """Return the group of that name, which the first rank that asks creates, with `member` as its rank `rank`.

        Raises:
            UsageError: If another rank has created the group with other ranks, or already has that number.
        """
        with world.lock:
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
        with self._world.lock:
            self._gone.add(rank)
            for operation, failure in list(self._pending_on_rank(rank)):
                self._world.finish(operation, failure)
            if len(self._gone) == self.size:
                self._world.groups.pop(self.name, None)
        self._world.run_callbacks()

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

    def pending_on(self, member: Member) -> Iterator[tuple[Operation, Failure]]:
        """Yield the operations that need a rank which has ended, each with the failure for the ranks that wait."""
        for rank, of_rank in self._members.items():
            if of_rank is member:
                yield from self._pending_on_rank(rank)

    def meet(
        self, rank: int, call: Call, contribution: object, move: Move, devices: Iterable[torch.device] = ()
    ) -> Collective:
        """Make a rank's next collective call. Does not wait for other ranks; the last rank to call does the work.

        Calls with equal signatures pass equivalent moves. `devices` are the accelerators that hold the contribution.
        The collective that it returns may have failed already.

        Raises:
            PeerFailedError: If a rank of the world has failed.
        """
        world = self._world
        with world.lock:
            number = self.calls_made[rank]
            collective = self._collectives.get(number)
            # A collective that has already failed for other ranks gives this rank the same error, not its consequence.
            if world.failure is not None and (collective is None or not collective.is_done):
                raise world.failure.error(call)
            self.calls_made[rank] = number + 1
            if collective is None:
                collective = self._collectives[number] = Collective(self.label, number, call.signature)
            collective.calls[rank] = call
            collective.missing_count -= 1
            is_complete = collective.missing_count == 0
            if is_complete:
                del self._collectives[number]
            if collective.is_done:
                return collective
            collective.contributions[rank] = contribution
            collective.devices.update(devices)
            failure = None
            if call.signature != collective.signature:
                failure = collective.mismatch("the calls of its ranks differ")
            elif not is_complete:
                failure = self._failure_if_rank_is_gone(collective)
            if failure is not None:
                world.finish(collective, failure)
        if is_complete and failure is None:
            failure = _do_move(collective, move)
            with world.lock:
                world.finish(collective, failure)
        world.run_callbacks()
        return collective

    def transfer(self, own: Transfer) -> None:
        """Start a send or a receive. Does not wait for the other rank; the second of the two does the copy.

        The `peer` of a receive from any rank is set when it is paired.

        Raises:
            PeerFailedError: If a rank of the world has failed.
        """
        world = self._world
        with world.lock:
            if world.failure is not None:
                raise world.failure.error(own.call)
            waiting = self._transfers[own.peer if own.is_send else own.rank]
            # Transfers that failed, by a time limit or otherwise, are still on the list.
            waiting[:] = [other for other in waiting if not other.is_done]
            other = next((other for other in waiting if own.meets(other)), None)
            if other is not None:
                waiting.remove(other)
                own.peer, other.peer = other.rank, own.rank
            elif own.peer != ANY_RANK and self._is_gone(own.peer):
                world.finish(own, own.lost())
            else:
                waiting.append(own)
        if other is not None:
            failure = _do_transfer(own, other)
            with world.lock:
                world.finish(other, failure)
                world.finish(own, failure)
        world.run_callbacks()

    def _is_gone(self, rank: int) -> bool:
        member = self._members.get(rank)
        return rank in self._gone or (member is not None and member.has_ended)

    def _failure_if_rank_is_gone(self, collective: Collective) -> Failure | None:
        if not (self._world.ended or self._gone):
            return None
        for rank, call in enumerate(collective.calls):
            if call is None and self._is_gone(rank):
                return collective.lost(rank)
        return None

    def _pending_on_rank(self, rank: int) -> Iterator[tuple[Operation, Failure]]:
        for collective in self._collectives.values():
            if collective.calls[rank] is None:
                yield collective, collective.lost(rank)
        for transfers in self._transfers.values():
            for transfer in transfers:
                if transfer.peer == rank:
                    yield transfer, transfer.lost()


def _do_move(collective: Collective, move: Move) -> Failure | None:
    try:
        run_move(move, collective.contributions, devices=collective.devices)
    except UnequalError as error:
        return collective.mismatch(str(error))
    except Exception as error:
        return _failed_move(sentence(collective.title()), error)
    finally:
        # Works keep the collective alive for longer; they need no contributions.
        collective.contributions = []
    return None


def _do_transfer(own: Transfer, other: Transfer) -> Failure | None:
    send, receive = (own, other) if own.is_send else (other, own)
    try:
        run_move(copy, receive.tensor, send.tensor, devices={*accelerators((send.tensor, receive.tensor))})
    except UnequalError as error:
        return own.mismatch(other, str(error))
    except Exception as error:
        return _failed_move(f"A send and its receive in {own.title()}", error)
    return None


def _failed_move(subject: str, error: Exception) -> Failure:
    return Failure(
        CollectiveError,
        f"{subject} failed: {type(error).__name__}: {error}\n"
        "Most likely torch cannot read or write one of the tensors, such as an output made by expand().\n"
        "Look at the tensors that the ranks pass to this call.",
        names_call=True,
    )
