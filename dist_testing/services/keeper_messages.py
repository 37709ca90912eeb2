"""The messages between the runner and the keeper of a service.

    runner  --- Keep, in the keeper's arguments ------>  keeper  --- fork, exec --->  service
            <-- Started or Refused, Ended, Over -------

The runner closes its side of the connection for writing to stop the service.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from dist_testing.core.ground.codec import Family

# Who opens the port: the service, at the number "{port}"; the keeper, for the descriptor "{fd}"; the service alone.
Opens: TypeAlias = Literal["port", "fd", ""]


@dataclass(frozen=True, slots=True)
class Keep:
    """Start a service, and keep it until the runner stops it or ends."""

    command: tuple[str, ...]  # with the placeholders of the port
    opens: Opens
    port: int  # 0 for a free one
    grace_s: float  # from SIGTERM to SIGKILL
    runner_pid: int
    folder: str  # of the log, which this process removes if the runner has ended before
    control_fd: int  # the connection to the runner
    fds: tuple[int, ...]  # that the service inherits


@dataclass(frozen=True, slots=True)
class Started:
    """The service has started."""

    pid: int
    port: int  # 0 if the service opens one by itself


@dataclass(frozen=True, slots=True)
class Refused:
    """The service cannot be started. `text` has the subject, the cause and the way out."""

    text: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The main process of the service has ended before the runner has stopped it."""

    exit_code: int  # a negative number is a signal
    at_s: float  # on the monotonic clock


@dataclass(frozen=True, slots=True)
class Over:
    """Nothing of the service runs any more. This is the last message."""

    killed: tuple[str, ...]  # command lines of its processes that did not end after SIGTERM
    leaked: tuple[str, ...]  # those of processes that had left its process group, and outlived it
    port_taken: bool  # whether another process still listens at its port


KeeperEvent: TypeAlias = Started | Refused | Ended | Over
KEEPER_ORDERS: Family[Keep] = Family("order to the keeper of a service", 1, (Keep,))
KEEPER_EVENTS: Family[KeeperEvent] = Family("message of the keeper of a service", 1, (Started, Refused, Ended, Over))
