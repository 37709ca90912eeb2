"""Waits until a part is ready for the next one. It asks the part and never guesses a time."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from local_cluster.errors import ClusterError
from local_cluster.parts import Running
from local_cluster.plan import HOST

# Limit for a part to become ready; it is generous for a loaded machine. Seconds.
READY_LIMIT_S = 90.0
# Time between two questions to a part that does not report by itself that it is ready. Seconds.
_INTERVAL_S = 0.05
# Limit for one question to the server. Seconds.
_QUESTION_S = 2.0
# Otherwise the channels of a process share their failures, and the second question waits as long as the first.
_OWN = (("grpc.use_local_subchannel_pool", 1),)
# Lines of a failed part's log that are shown: if the cluster does not start, nothing else of the log is left.
_SHOWN_LINES = 40


def wait_ready(running: Running, is_ready: Callable[[], bool], log: Path, limit_s: float = READY_LIMIT_S) -> None:
    """Wait until a part is ready."""
    deadline = time.monotonic() + limit_s
    name = running.part.name
    while not is_ready():
        # The end of the part is noticed at once.
        ended = select.select([running.pidfd], [], [], _INTERVAL_S)[0]
        if ended:
            raise ClusterError(
                f"{name} {describe_end(running.process.wait())} before it was ready. The end of its log:{tail(log)}",
                "The log says why it ended.",
                "Remedy the cause that the log names.",
            )
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{name} was not ready within {limit_s:.0f} s. The end of its log:{tail(log)}",
                "The machine is overloaded, or the part waits for something that is missing.",
                "Try again on a quieter machine.",
            )


def is_server_ready(port: int) -> bool:
    """Ask the server's own health service."""
    with grpc.insecure_channel(f"{HOST}:{port}", _OWN) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=_QUESTION_S)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def is_listening(socket: Path) -> bool:
    """Return whether a process accepts connections on a socket."""
    with grpc.insecure_channel(f"unix:{socket}", _OWN) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_QUESTION_S)
        except grpc.FutureTimeoutError:
            return False
    return True


def describe_end(status: int) -> str:
    """Return how a process ended, in words."""
    if status >= 0:
        return f"ended with status {status}"
    return f"was killed by {_signal_name(-status)}"


def tail(log: Path, lines: int = _SHOWN_LINES) -> str:
    """Return the last lines of a log, indented, each on a line of its own."""
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - 64 * 1024))
            text = stream.read().decode(errors="replace")
    except OSError as error:
        return f" ({log}: {error.strerror})"
    shown = text.splitlines()[-lines:]
    return "".join(f"\n    {line[:300]}" for line in shown) or " (it is empty)"


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} ({number})"
    except ValueError:
        return f"signal {number}"
