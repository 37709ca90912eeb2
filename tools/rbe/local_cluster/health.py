"""Whether a part is ready for the next one: asked, not guessed."""

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

# A part that is not ready by then never will be; a loaded machine takes its time. Seconds.
READY_LIMIT_S = 90.0
# Between two questions to a part that cannot tell by itself that it is ready. Seconds.
_INTERVAL_S = 0.05
# One question to the server. Seconds.
_QUESTION_S = 2.0
# Else channels of one process share their failures, and the second question waits as if the first were still failing.
_OWN = (("grpc.use_local_subchannel_pool", 1),)
# Lines of a part's log that are shown when it fails: all that is left of it if the cluster then does not come up.
_SHOWN_LINES = 40


def wait_ready(running: Running, is_ready: Callable[[], bool], log: Path, limit_s: float = READY_LIMIT_S) -> None:
    """Wait until a part is ready.

    Raises:
        ClusterError: If it ends before it is, or takes too long.
    """
    deadline = time.monotonic() + limit_s
    name = running.part.name
    while not is_ready():
        # Its end is noticed at once.
        ended = select.select([running.pidfd], [], [], _INTERVAL_S)[0]
        if ended:
            raise ClusterError(
                f"{name} {describe_end(running.process.wait())} before it was ready. The end of its log:{tail(log)}",
                "Those are its own words.",
                "Remedy what they name.",
            )
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{name} was not ready within {limit_s:.0f} s. The end of its log:{tail(log)}",
                "The machine is overloaded, or the part waits for something that is not there.",
                "Try again on a quieter machine.",
            )


def is_server_ready(port: int) -> bool:
    """Ask the server's own health service."""
    return _is_serving(f"127.0.0.1:{port}")


def is_listening(socket: Path) -> bool:
    """Say whether somebody takes calls on a socket."""
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


def _is_serving(address: str) -> bool:
    with grpc.insecure_channel(address, _OWN) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=_QUESTION_S)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} ({number})"
    except ValueError:
        return f"signal {number}"
