"""Starts hubs and relays in fresh interpreters that import nothing that has to be installed.

The program gets its task on standard input, whose end tells it later that its starter has ended; a relay answers on
standard output. The token is in neither the command line nor the environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from dist_testing.attach import hub, relay
from dist_testing.attach.relay_messages import PLACES, TASKS, HubTask, RelayPlace, RelayTask
from dist_testing.core.ground.errors import LaunchError, MessageError

# Importing the package itself would load the front ends.
_CODE = """
import sys, types
package = types.ModuleType("dist_testing")
package.__path__ = [sys.argv[1]]
sys.modules["dist_testing"] = package
from dist_testing.attach.helper import main
main()
"""


def start_hub(task: HubTask) -> subprocess.Popen[bytes]:
    """Start the hub, which inherits its listening socket. It ends when its standard input is closed.

    At its end, the end of its standard output is reached.
    """
    return _start(task, pass_fds=(task.listener_fd,))


def start_relay(task: RelayTask) -> tuple[subprocess.Popen[bytes], RelayPlace]:
    """Start the relay of this node and wait until it has reached the hub, or has failed."""
    process = _start(task)
    assert process.stdout is not None
    line = process.stdout.readline()
    try:
        place = PLACES.from_wire(line)
    except MessageError:
        return process, RelayPlace("", "The relay of this node has ended before it reached rank 0's node.")
    assert isinstance(place, RelayPlace)
    return process, place


def main() -> None:
    """Be a hub or a relay, in a process that is no child of the rank: a rank with children counts as one that works."""
    task = TASKS.from_wire(sys.stdin.buffer.readline())
    if os.fork():
        os._exit(0)
    if isinstance(task, HubTask):
        hub.serve(task, sys.stdin.fileno())
    else:
        relay.serve(task, sys.stdin.fileno(), _answer)


def _answer(path: str, error: str) -> None:
    sys.stdout.buffer.write(PLACES.to_wire(RelayPlace(path, error)) + b"\n")
    sys.stdout.buffer.flush()


def _start(task: HubTask | RelayTask, pass_fds: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CODE, str(Path(__file__).resolve().parents[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=pass_fds,
            env=dict(os.environ),
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(TASKS.to_wire(task) + b"\n")
        process.stdin.flush()
        process.wait()
    except OSError as error:
        raise LaunchError(
            f"The process that connects the nodes could not be started: {error.strerror or error}.\n"
            "It is a Python interpreter beside the ranks.\n"
            "See the limits of processes and memory of this node."
        ) from error
    return process
