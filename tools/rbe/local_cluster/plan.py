"""The plan of a cluster: its workers by the option `--pool`, and the port that it listens on."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from local_cluster.errors import ClusterError

HOST = "127.0.0.1"

POOL_KEY = "Pool"
GPUS_KEY = "gpus"
OS_KEY = "OSFamily"

# More than one machine can use; a typing mistake must not start a thousand processes.
MAX_WORKERS = 64
MAX_JOBS = 256
MAX_GPUS = 64

FORM = "NAME=WORKERS[:key=value[,key=value...]]"
_EXAMPLE = "For example: --pool cpu=2 --pool gpu2=1:gpus=2,jobs=1"

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")
_VALUE = re.compile(r"[A-Za-z0-9_./:+@-]{1,128}")
_NUMBER = re.compile(r"[0-9]{1,4}")


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker, which stands for a machine."""

    name: str  # pool and number, such as "gpu2-1"
    pool: str  # name of its pool
    jobs: int  # actions that it runs at once
    present: int | None  # number of its simulated GPUs; None if it sees the machine's own devices
    properties: MappingProxyType[str, str]  # the properties that it announces to the server


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts to start."""

    name: str  # name of the cluster
    port: int  # port of the server
    workers: tuple[Worker, ...]  # all workers
    buildbox: Path  # directory of BuildBox's programs
    postgres: Path  # directory of PostgreSQL's programs

    @property
    def endpoint(self) -> str:
        """The value for Bazel's --remote_executor."""
        return f"grpc://{HOST}:{self.port}"


def parse_pools(texts: Sequence[str]) -> tuple[Worker, ...]:
    """Read the values of all `--pool` options; return the workers."""
    pools: dict[str, list[Worker]] = {}
    for text in texts:
        workers = parse_pool(text)
        if pools.setdefault(workers[0].pool, workers) is not workers:
            raise ClusterError(
                f"--pool: '{workers[0].pool}' is given twice.",
                "Each pool needs a name of its own.",
                "Drop or rename one.",
            )
    if (total := sum(map(len, pools.values()))) > MAX_WORKERS:
        raise ClusterError(
            f"--pool: {total} workers in all, and at most {MAX_WORKERS} are allowed.",
            "Each is a process with a storage of its own, all on this machine.",
            "Start fewer; jobs=N makes a worker run several actions at once.",
        )
    return tuple(worker for workers in pools.values() for worker in workers)


def parse_pool(text: str) -> list[Worker]:
    """Read the value of one `--pool`; return its workers.

    Its keys are `jobs`; `gpus`, which the workers announce; `present`, the GPUs that are simulated (fewer for a broken
    promise; without both a worker sees the machine's own devices); and properties, which override the others.

    Raises:
        ClusterError: If it is malformed or out of range.
    """
    head, colon, tail = text.partition(":")
    name, equals, count = head.partition("=")
    if not equals or not _NAME.fullmatch(name):
        raise _malformed(text, "NAME is letters, digits and underscores, and begins with a letter")
    if colon and not tail:
        raise _malformed(text, "nothing follows the colon")
    workers = _number(text, "WORKERS", count, 1, MAX_WORKERS)
    numbers: dict[str, int] = {}
    properties: dict[str, str] = {}
    limits = {"jobs": (1, MAX_JOBS), "gpus": (0, MAX_GPUS), "present": (0, MAX_GPUS)}
    for part in tail.split(",") if tail else []:
        key, equals, value = part.partition("=")
        if not equals or not _NAME.fullmatch(key) or not _VALUE.fullmatch(value):
            raise _malformed(text, f"'{part}' is not key=value")
        if key in numbers or key in properties:
            raise _malformed(text, f"'{key}' is given twice")
        if key in limits:
            numbers[key] = _number(text, key, value, *limits[key])
        else:
            properties[key] = value
    gpus = numbers.get("gpus", 0)
    present = numbers.get("present", gpus)
    announced = {POOL_KEY: name, OS_KEY: "linux", **({GPUS_KEY: str(gpus)} if gpus else {}), **properties}
    return [
        Worker(
            name=f"{name}-{number}",
            pool=name,
            jobs=numbers.get("jobs", 1),
            present=present if gpus or present else None,
            properties=MappingProxyType(announced),
        )
        for number in range(1, workers + 1)
    ]


def _number(text: str, key: str, value: str, low: int, high: int) -> int:
    if not _NUMBER.fullmatch(value) or not low <= int(value) <= high:
        raise _malformed(text, f"{key} is '{value}', but a number from {low} to {high} is expected")
    return int(value)


def _malformed(text: str, reason: str) -> ClusterError:
    return ClusterError(f"--pool '{text}': {reason}.", f"The form is {FORM}.", _EXAMPLE)


def reserve_port(port: int) -> socket.socket:
    """Bind a port for the life of the cluster, so that no other program gets it while the server restarts; 0 for any.

    The socket does not listen. The server may bind the same port, because both sockets set the option for it and belong
    to one user.
    """
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # Without the option, so that another server that shares its port is noticed, too.
        reservation.bind((HOST, port))
    except OSError as error:
        reservation.close()
        raise ClusterError(
            f"port {port} cannot be used: {error.strerror}.",
            "Another program uses it: perhaps a second cluster, of another user or under another --name.",
            "End that program, or choose another port: --port=0 takes any free one and prints the endpoint.",
        ) from error
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return reservation
