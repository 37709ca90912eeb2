"""The messages between the process of rank 0, which is the runner, and those of the other ranks.

A process sends `Joining` once, with a descriptor: the connection to the fork server that makes its rank. From then on
the runner speaks with that fork server as with its own, and with the process only to end it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

from dist_testing.core.ground.codec import Family
from dist_testing.core.ground.errors import LaunchError
from dist_testing.core.ground.spec import MAX_WORLD_SIZE


@dataclass(frozen=True, slots=True)
class Home:
    """Where the other processes find that of rank 0. Travels in the store of the world."""

    node: str  # `RankInfo.node_key` of rank 0
    path: str  # rank 0's Unix socket, for the processes of its node
    collected: tuple[str, ...]  # the tests that rank 0 has collected, in the order of their names
    address: str = ""  # where it listens for the other nodes; "" if there are none
    port: Annotated[int, range(1 << 16)] = 0
    token: str = ""  # what they must have; "" if the environment of every rank holds it

    def difference(self, rank: int, names: set[str]) -> str:
        """Return the first difference between the tests of a rank and those of rank 0; "" if there is none."""
        differing = sorted(names.symmetric_difference(self.collected))
        if not differing:
            return ""
        has, lacks = (rank, 0) if differing[0] in names else (0, rank)
        more = f" ({len(differing) - 1} more differ)" if len(differing) > 1 else ""
        return f"rank {has} has {differing[0]}, and rank {lacks} does not{more}"


@dataclass(frozen=True, slots=True)
class Joining:
    """This process is ready to make its rank."""

    rank: Annotated[int, range(MAX_WORLD_SIZE)]  # from 1
    difference: str = ""  # the first one between the tests that it and rank 0 have collected; "" for none
    node: str = ""  # host name of another node, to which its bridge adds the address; "" for the node of rank 0


@dataclass(frozen=True, slots=True)
class EndRun:
    """End with this exit code: the run is over. If the process is refused, `error` says why."""

    exit_code: Annotated[int, range(256)]
    error: str = ""


# A process reads `Home` first, so one of another version of this library fails there, with the reason.
Message: TypeAlias = Home | Joining | EndRun
MESSAGES: Family[Message] = Family("message of an attached world", 1, (Home, Joining, EndRun))


def lost_runner(reason: str) -> LaunchError:
    """Return the error of a process that rank 0 has left without `EndRun`."""
    return LaunchError(
        f"The connection to rank 0 has ended before the run was over: {reason}.\n"
        "Rank 0 is the runner: without it no case can be started or reported. It has ended, or the network has.\n"
        "See the output of rank 0, and the launcher's message about its end."
    )
