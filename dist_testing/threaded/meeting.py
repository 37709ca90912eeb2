"""Where the ranks of a group meet: its collectives, numbered, and its sends and receives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dist_testing.errors import CollectiveError, CollectiveMismatchError, DeadlockError, UsageError
from dist_testing.threaded.data import UnequalError, accelerators, copy, run_move
from dist_testing.threaded.explain import ranks_text, sentence
from dist_testing.threaded.members import Member, ThreadWorld, run_all
from dist_testing.threaded.operation import Call, Failure, Operation

if TYPE_CHECKING:
    import torch

__all__ = ["ANY_RANK", "Collective", "Move", "SharedGroup", "Transfer"]

# The peer of a receive that takes from whoever sends first.
ANY_RANK = -1

# Does the work of a collective when every rank has come. Gets what they brought, in the order of ranks.
Move = Callable[[list[Any]], None]


class Collective(Operation):
    """One collective of a group: a single object for all its ranks.

    Attributes:
        calls: By rank of the group; None for those that have not come.
        brought: What they brought, in the same order.
        missing_count: How many have not come.
        signature: Of the call that came first.
        devices: The accelerators that hold what they brought.
    """

    __slots__ = ("_group", "_number", "brought", "calls", "devices", "missing_count", "signature")

    def __init__(self, group: SharedGroup, number: int, signature: tuple[object, ...]) -> None:
        super().__init__()
        self._group = group
        self._number = number
        self.signature = signature
        self.devices: set[torch.device] = set()
        self.calls: list[Call | None] = [None] * group.size
        self.brought: list[Any] = [None] * group.size
        self.missing_count = group.size

    def title(self) -> str:
        """Its number, and the group."""
        return f"collective #{self._number} of {self._group.title()}"

    def missing(self) -> str:
        """The ranks that have not come."""
        return ranks_text(self._group.ranks[rank] for rank, call in enumerate(self.calls) if call is None)

    def mismatch(self, what: str) -> Failure:
        """The failure of a collective for which the ranks' calls do not fit together.

        Args:
            what: In which way.
        """
        return Failure(
            CollectiveMismatchError,
            "\n".join(
                (
                    f"{sentence(self.title())}: {what}.",
                    *self._lines(),
                    "Most likely a call depends on the rank, or one rank is a call ahead of the others.",
                    "Let all ranks of a group make the same collective calls in the same order.",
                )
            ),
        )

    def lost(self, rank: int) -> Failure:
        """The failure of a collective that a rank will never come to.

        Args:
            rank: The rank, by its number in the group.
        """
        return Failure(
            DeadlockError,
            "\n".join(
                (
                    f"{sentence(self.title())} can never be completed: rank {self._group.ranks[rank]} has ended, "
                    "or has destroyed the group, without it.",
                    *self._lines(),
                    "Most likely that rank makes fewer calls than the others.",
                    "Let all ranks of a group make the same collective calls in the same order.",
                )
            ),
        )

    def _lines(self) -> list[str]:
        here: dict[str, list[int]] = {}
        for rank, call in enumerate(self.calls):
            if call is not None:
                here.setdefault(str(call), []).append(self._group.ranks[rank])
        lines = [f"  {ranks_text(ranks)}: {call}" for call, ranks in here.items()]
        if self.missing_count:
            lines.append(f"  not there: {self.missing()}")
        return lines


class Transfer(Operation):
    """A send or a receive.

    Attributes:
        rank: Who made it, by its number in the group.
        peer: The other side; of a receive that is open to all, `ANY_RANK` until one has sent.
        tag: Only those of one tag meet.
        tensor: What is sent, or where it goes.
        call: The call.
    """

    __slots__ = ("_group", "call", "is_send", "peer", "rank", "tag", "tensor")

    def __init__(
        self, group: SharedGroup, rank: int, peer: int, tag: int, tensor: torch.Tensor, call: Call, *, is_send: bool
    ) -> None:
        super().__init__()
        self._group = group
        self.rank = rank
        self.peer = peer
        self.tag = tag
        self.tensor = tensor
        self.call = call
        self.is_send = is_send

    def title(self) -> str:
        """The group."""
        return self._group.title()

    def missing(self) -> str:
        """The other side."""
        whom = "any rank" if self.peer == ANY_RANK else f"rank {self._group.ranks[self.peer]}"
        return f"{whom} to {'receive' if self.is_send else 'send'}"

    def meets(self, other: Transfer) -> bool:
        """Whether this send and that receive, or the other way round, belong together."""
        return self.tag == other.tag and self.peer in (other.rank, ANY_RANK) and other.peer in (self.rank, ANY_RANK)

    def lost(self) -> Failure:
        """The failure when the other side has ended."""
        return Failure(
            DeadlockError,
            f"Rank {self._group.ranks[self.peer]} has ended, or has destroyed {self.title()}; rank "
            f"{self._group.ranks[self.rank]} waits for it in {self.call}.\n"
            f"Most likely that rank makes one {'receive' if self.is_send else 'send'} too few, or with another tag.\n"
            "Pair each send with a receive of the same tag.",
        )

    def mismatch(self, other: Transfer, what: str) -> Failure:
        """The failure when the two sides do not fit."""
        ranks = self._group.ranks
        return Failure(
            CollectiveMismatchError,
            f"A send and its receive in {self.title()} do not fit: {what}.\n"
            f"  rank {ranks[self.rank]}: {self.call}\n"
            f"  rank {ranks[other.rank]}: {other.call}\n"
            "Give both the same number of elements and the same dtype; the order of sends and receives of one tag "
            "decides which belong together.",
        )


class SharedGroup:
    """What the ranks of one group have in common.

    Args:
        world: The world they belong to.
        name: Under which the world keeps it.
        label: What a reader knows the group by, such as "the default group".
        ranks: The number of each in the default group, which is what users say.
    """

    def __init__(self, world: ThreadWorld, name: str, label: str, ranks: Sequence[int]) -> None:
        self.name = name
        self.size = len(ranks)
        self.ranks = tuple(ranks)
        self._world = world
        self._label = label
        self._members: list[Member | None] = [None] * self.size
        self._gone: set[int] = set()
        self._calls_made = [0] * self.size
        self._splits_made = [0] * self.size
        self._collectives: dict[int, Collective] = {}
        # By receiver.
        self._sends: dict[int, list[Transfer]] = {}
        self._receives: dict[int, list[Transfer]] = {}

    def title(self) -> str:
        """What a reader knows the group by."""
        return self._label

    def calls_made(self, rank: int) -> int:
        """How many collectives a rank has called: c10d's sequence number."""
        return self._calls_made[rank]

    def join(self, rank: int, member: Member | None) -> None:
        """A rank has made its side of the group.

        Raises:
            UsageError: If another one has that number already.
        """
        with self._world.lock:
            if self._members[rank] is not None and self._members[rank] is not member:
                raise UsageError(
                    f"Two threads are rank {rank} of {self.title()}.\n"
                    "Each rank of a group has its own number, and makes the group once.\n"
                    "Give every init_process_group of a store a rank of its own."
                )
            self._members[rank] = member

    def leave(self, rank: int) -> None:
        """A rank has destroyed its side of the group."""
        callbacks: list[Callable[[], None]] = []
        with self._world.lock:
            self._gone.add(rank)
            for operation, failure in list(self._pending_on_rank(rank)):
                self._world.finish(operation, failure, callbacks)
            if len(self._gone) == self.size:
                self._world.groups.pop(self.name, None)
        run_all(callbacks)

    def split(self, rank: int, ranks: Sequence[int]) -> SharedGroup | None:
        """A rank takes part in a split.

        Args:
            rank: The rank.
            ranks: Those of the new group, by their numbers in this one.

        Returns:
            What the ranks of the new group have in common; None if this one is not of them.
        """
        self._splits_made[rank] += 1
        if rank not in ranks:
            return None
        name = f"{self.name}:split{self._splits_made[rank]}:{','.join(map(str, ranks))}"
        split = self.of(self._world, name, f"a split of {self.title()}", [self.ranks[own] for own in ranks])
        split.join(ranks.index(rank), self._members[rank])
        return split

    @classmethod
    def of(cls, world: ThreadWorld, name: str, label: str, ranks: Sequence[int]) -> SharedGroup:
        """The group of that name; made by the first of its ranks to ask.

        Raises:
            UsageError: If another rank has made it with other ranks.
        """
        with world.lock:
            shared = world.groups.get(name)
            if shared is None:
                shared = world.groups[name] = cls(world, name, label, ranks)
        assert isinstance(shared, cls)
        if shared.ranks != tuple(ranks):
            raise UsageError(
                f"{sentence(label)} has {ranks_text(ranks)} on one rank and {ranks_text(shared.ranks)} on another.\n"
                "The ranks of a group were given different sizes or lists of ranks.\n"
                "Give init_process_group the same world_size, and new_group the same ranks, on all of them."
            )
        return shared

    def pending(self) -> Iterator[Operation]:
        """Operations that are not over."""
        yield from self._collectives.values()
        for transfers in (*self._sends.values(), *self._receives.values()):
            yield from transfers

    def pending_on(self, member: Member) -> Iterator[tuple[Operation, Failure]]:
        """Those of them that need a rank which has ended, each with what to tell those who wait."""
        for rank, of_rank in enumerate(self._members):
            if of_rank is member:
                yield from self._pending_on_rank(rank)

    def meet(
        self, rank: int, call: Call, brought: object, move: Move, devices: Iterable[torch.device] = ()
    ) -> Collective:
        """A rank makes its next collective call. Does not wait for the others; the last one to come does the work.

        Args:
            rank: The rank, by its number in the group.
            call: Its call.
            brought: For `move`.
            move: Does the work; of calls with the same signature all are alike.
            devices: The accelerators that hold what it brings.

        Raises:
            PeerFailedError: If a rank has failed.
        """
        world = self._world
        callbacks: list[Callable[[], None]] = []
        with world.lock:
            number = self._calls_made[rank]
            collective = self._collectives.get(number)
            # One that failed for others too is told as it was told to them, before what came of it.
            if world.failure is not None and (collective is None or not collective.is_done):
                raise world.failure.error(call)
            self._calls_made[rank] = number + 1
            if collective is None:
                collective = self._collectives[number] = Collective(self, number, call.signature)
            collective.calls[rank] = call
            collective.missing_count -= 1
            is_complete = collective.missing_count == 0
            if is_complete:
                del self._collectives[number]
            if collective.is_done:
                return collective
            collective.brought[rank] = brought
            collective.devices.update(devices)
            failure = None
            if call.signature != collective.signature:
                failure = collective.mismatch("the calls of its ranks differ")
            elif not is_complete:
                failure = self._never(collective)
            if failure is not None:
                world.finish(collective, failure, callbacks)
        if is_complete and failure is None:
            failure = _carried_out(collective, move)
            with world.lock:
                world.finish(collective, failure, callbacks)
        run_all(callbacks)
        return collective

    def transfer(self, own: Transfer) -> None:
        """A rank sends or receives. Does not wait for the other side.

        Raises:
            PeerFailedError: If a rank has failed.
        """
        world = self._world
        callbacks: list[Callable[[], None]] = []
        with world.lock:
            if world.failure is not None:
                raise world.failure.error(own.call)
            receiver = own.peer if own.is_send else own.rank
            others, same = self._sends.setdefault(receiver, []), self._receives.setdefault(receiver, [])
            if own.is_send:
                others, same = same, others
            # Those that failed, by a time limit or otherwise, are not taken off their list.
            others[:] = [other for other in others if not other.is_done]
            other = next((other for other in others if own.meets(other)), None)
            if other is not None:
                others.remove(other)
                own.peer, other.peer = other.rank, own.rank
            elif own.peer != ANY_RANK and self._is_gone(own.peer):
                world.finish(own, own.lost(), callbacks)
            else:
                same.append(own)
        if other is not None:
            failure = _copied(own, other)
            with world.lock:
                world.finish(other, failure, callbacks)
                world.finish(own, failure, callbacks)
        run_all(callbacks)

    def _is_gone(self, rank: int) -> bool:
        member = self._members[rank]
        return rank in self._gone or (member is not None and member.has_ended)

    def _never(self, collective: Collective) -> Failure | None:
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
        for transfers in (*self._sends.values(), *self._receives.values()):
            for transfer in transfers:
                if transfer.peer == rank:
                    yield transfer, transfer.lost()


def _carried_out(collective: Collective, move: Move) -> Failure | None:
    try:
        run_move(move, collective.brought, devices=collective.devices)
    except UnequalError as error:
        return collective.mismatch(str(error))
    except Exception as error:
        return Failure(CollectiveError, f"{sentence(collective.title())} failed: {error}", names_call=True)
    finally:
        # Works outlive the collective, and keep it alive.
        collective.brought = []
    return None


def _copied(own: Transfer, other: Transfer) -> Failure | None:
    send, receive = (own, other) if own.is_send else (other, own)
    try:
        run_move(copy, receive.tensor, send.tensor, devices={*accelerators((send.tensor, receive.tensor))})
    except UnequalError as error:
        return own.mismatch(other, str(error))
    except Exception as error:
        return Failure(CollectiveError, f"A send and its receive in {own.title()} failed: {error}", names_call=True)
    return None
