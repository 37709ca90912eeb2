"""The option `--pool`: named groups of equal workers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from local_cluster.errors import ClusterError

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
    """One worker, which stands for a machine.

    Attributes:
        name: Pool and number, such as "gpu2-1".
        pool: Name of its pool.
        jobs: Actions that it runs at once.
        present: Number of its simulated GPUs; None if it sees the machine's own devices.
        properties: The properties that it announces to the server.
    """

    name: str
    pool: str
    jobs: int
    present: int | None
    properties: MappingProxyType[str, str]


@dataclass(frozen=True, slots=True)
class Pool:
    """A group of workers.

    Attributes:
        name: Its name. It is also the value of the workers' property "Pool", unless `properties` has another value.
        workers: Number of workers.
        jobs: Actions that one worker runs at once.
        gpus: GPUs that one worker announces; 0 for none.
        present: Simulated GPUs of one worker; fewer than `gpus` for a broken promise.
        properties: Further properties; they override the others.
    """

    name: str
    workers: int
    jobs: int = 1
    gpus: int = 0
    present: int = 0
    properties: MappingProxyType[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def members(self) -> list[Worker]:
        """Return the workers."""
        announced = {POOL_KEY: self.name, OS_KEY: "linux"}
        if self.gpus:
            announced[GPUS_KEY] = str(self.gpus)
        announced.update(self.properties)
        return [
            Worker(
                name=f"{self.name}-{number}",
                pool=self.name,
                jobs=self.jobs,
                present=self.present if self.gpus or self.present else None,
                properties=MappingProxyType(announced),
            )
            for number in range(1, self.workers + 1)
        ]


def parse_pools(texts: Sequence[str]) -> list[Pool]:
    """Read the values of all `--pool` options.

    Raises:
        ClusterError: If one is malformed, out of range or repeated, or there are too many workers.
    """
    pools: dict[str, Pool] = {}
    for text in texts:
        pool = parse_pool(text)
        if pool.name in pools:
            raise ClusterError(
                f"--pool: '{pool.name}' is given twice.",
                "Each pool needs a name of its own.",
                "Drop or rename one.",
            )
        pools[pool.name] = pool
    if (total := sum(pool.workers for pool in pools.values())) > MAX_WORKERS:
        raise ClusterError(
            f"--pool: {total} workers in all, and at most {MAX_WORKERS} are allowed.",
            "Each is a process with a storage of its own, all on this machine.",
            "Start fewer; jobs=N makes a worker run several actions at once.",
        )
    return list(pools.values())


def parse_pool(text: str) -> Pool:
    """Read the value of one `--pool`.

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
    return Pool(
        name=name,
        workers=workers,
        jobs=numbers.get("jobs", 1),
        gpus=gpus,
        present=numbers.get("present", gpus),
        properties=MappingProxyType(properties),
    )


def _number(text: str, key: str, value: str, low: int, high: int) -> int:
    if not _NUMBER.fullmatch(value) or not low <= int(value) <= high:
        raise _malformed(text, f"{key} is '{value}', but a number from {low} to {high} is expected")
    return int(value)


def _malformed(text: str, reason: str) -> ClusterError:
    return ClusterError(f"--pool '{text}': {reason}.", f"The form is {FORM}.", _EXAMPLE)
