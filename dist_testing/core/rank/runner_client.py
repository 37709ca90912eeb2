"""Asks the runner on behalf of a rank, and waits for its answers: test code reaches the watcher of an add-on."""

from __future__ import annotations

import os
import socket
import threading

from dist_testing.core.ground.errors import UsageError
from dist_testing.core.process import wire
from dist_testing.core.process.rank_messages import INSTRUCTIONS, RANK_MESSAGES, Extra


class RunnerClient:
    """The rank's end of its questions to the runner.

    During a case the runner sends nothing but answers to them, so the answer is the next message in the channel.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        # A test may ask from several threads.
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._is_open = True

    def begin_case(self) -> None:
        """Accept questions again."""
        self._is_open = True

    def end_case(self) -> None:
        """Accept no more questions: from now on, the channel brings other instructions."""
        with self._lock:
            self._is_open = False

    def ask(self, add_on: str, payload: str, subject: str) -> str:
        """Ask the watcher of an add-on, and wait for its answer. Only the add-on reads the question, `payload`.

        `subject` is what the user has called, such as "world.faults". It begins the texts of errors.

        Raises:
            UsageError: If a fork of the rank asks, or the case is over.
            ConnectionResetError: If the runner ends the case meanwhile.
        """
        with self._lock:
            if os.getpid() != self._pid:
                raise UsageError(
                    f"{subject}: asked for by a process that the rank has forked.\n"
                    "The runner answers the rank, and only the rank reads its answers.\n"
                    "Ask for it in the rank's own process."
                )
            if not self._is_open:
                raise UsageError(
                    f"{subject}: asked for after the end of the case.\n"
                    "A thread that the test left behind has called it.\n"
                    "Wait for the thread before the test ends."
                )
            wire.send(self._channel, RANK_MESSAGES, Extra(add_on, payload))
            match wire.receive(self._channel, INSTRUCTIONS):
                case (Extra(add_on=answering, payload=answer), _) if answering == add_on:
                    return answer
        # The runner is gone, or has ended the case: this process is about to be killed.
        raise ConnectionResetError(f"{subject}: the runner does not answer, because it ends the case")
