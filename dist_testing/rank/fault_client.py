"""Asks the runner for faults on behalf of a rank, and waits for its answers."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dist_testing.errors import UsageError
from dist_testing.process import wire
from dist_testing.process.rank_messages import (
    INSTRUCTIONS,
    RANK_MESSAGES,
    FaultDone,
    LinkFault,
    RankMessage,
    SignalFault,
)

if TYPE_CHECKING:
    from dist_testing.faults import SignalAction
    from dist_testing.nodes.links import Link, LinkRule


class FaultClient:
    """The rank's end of its requests for faults.

    During a case the runner sends nothing but answers to them, so the answer is the next message in the channel.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        # A test may ask from several threads.
        self._lock = threading.Lock()
        self._number = 0
        self._pid = os.getpid()
        self._is_open = True

    def begin_case(self) -> None:
        """Accept requests again."""
        self._is_open = True

    def end_case(self) -> None:
        """Accept no more requests: from now on, the channel brings other instructions."""
        with self._lock:
            self._is_open = False

    def signal(self, action: SignalAction, ranks: Sequence[int]) -> None:
        """Send a signal to ranks, and wait until it has had its effect.

        Raises:
            UsageError: If the runner refuses.
        """
        with self._lock:
            self._ask(SignalFault(self._next(), action, tuple(ranks)))

    def set_links(self, links: Sequence[Link], rule: LinkRule) -> None:
        """Give links between nodes a rule, and wait until it holds.

        Raises:
            UsageError: If the runner refuses.
        """
        with self._lock:
            self._ask(LinkFault(self._next(), tuple(links), rule))

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _ask(self, request: RankMessage) -> None:
        if os.getpid() != self._pid:
            raise UsageError(
                "world.faults: asked for by a process that the rank has forked.\n"
                "The runner answers the rank, and only the rank reads its answers.\n"
                "Ask for the fault in the rank's own process."
            )
        if not self._is_open:
            raise UsageError(
                "world.faults: asked for after the end of the case.\n"
                "A thread that the test left behind has called it.\n"
                "Wait for the thread before the test ends."
            )
        wire.send(self._channel, RANK_MESSAGES, request)
        received = wire.receive(self._channel, INSTRUCTIONS)
        match received:
            case (FaultDone(number=self._number, refusal=""), _):
                return
            case (FaultDone(number=self._number, refusal=text), _):
                raise UsageError(text)
        # The runner is gone, or has ended the case: this process is about to be killed.
        raise ConnectionResetError("world.faults: the runner does not answer, because it ends the case")
