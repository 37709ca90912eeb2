"""The parts that live in the runner: the server of each world, a limit of its size, and an explanation."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Sequence

from dist_testing.ext import (
    CaseResult,
    CaseStart,
    EndCase,
    HeldResource,
    LaunchError,
    ResourceWish,
    UsageError,
    WatchedWorld,
    WorldResource,
    WorldWatcher,
)
from key_value.client import ADDRESS, Client

MAX_KEYS = 100
# Seconds between two looks at the server's size.
PAUSE_S = 0.1


def read_limit(subject: str, value: object) -> int:
    """Return the limit of keys that a test, a class or a target sets."""
    if type(value) is not int or value < 1:
        raise UsageError(f"{subject}: key_value = {value!r}.\nIt is the largest number of keys.\nUse 10, for example.")
    return value


class Server(WorldResource):
    """Starts a server for each world."""

    def acquire(self, wish: ResourceWish) -> HeldResource:
        """Start one."""
        command = [sys.executable, "-m", "key_value.server"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        if not (port := process.stdout.readline().strip()):
            raise LaunchError(f"The key-value server has ended at its start, with exit code {process.wait()}.")
        wish.log_line(f"key-value server {process.pid} serves {wish.case.name}")
        return Running(process, f"127.0.0.1:{port}")


class Running(HeldResource):
    """The server of one world."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self._process = process
        self._address = address
        self.env = {ADDRESS: address}

    def check(self, *, are_ranks_gone: bool) -> Sequence[str]:
        """Return the locks that the case has left, and empty the server for the next case of the world."""
        del are_ranks_gone
        if (code := self._process.poll()) is not None:
            return [f"the key-value server has ended with exit code {code}"]
        with Client(self._address) as client:
            keys = client.keys()
            for key in keys:
                client.ask("delete", key)
        return [f"the lock {key!r} is left in the key-value server" for key in keys if key.startswith("lock:")]

    def release(self, *, are_ranks_gone: bool) -> None:
        """Stop the server."""
        del are_ranks_gone
        self._process.communicate()


class SizeLimit(WorldWatcher):
    """Ends a case that sets too many keys."""

    def __init__(self, world: WatchedWorld) -> None:
        del world
        self._address = ""
        self._used: dict[int, str] = {}
        self._limit = MAX_KEYS

    def begin_case(self, start: CaseStart) -> None:
        """Forget the last case."""
        self.next_s = start.began_s + PAUSE_S
        self._used = {}
        self._limit = start.case.settings.get("key_value", MAX_KEYS)

    def on_message(self, rank: int, payload: str) -> None:
        """Note what a rank has told: `rank.Tidiness`."""
        what, _, value = payload.partition(" ")
        if what == "address":
            self._address = value
        else:
            self._used[rank] = value

    def poll(self, now_s: float) -> EndCase | None:
        """Look at the size of the server."""
        if now_s < self.next_s:
            return None
        self.next_s = now_s + PAUSE_S
        if not self._address:
            return None
        with Client(self._address) as client:
            size = len(client.keys())
        if size <= self._limit:
            return None
        return EndCase(f"the key-value server has {size} keys; the limit is {self._limit}")

    def explain(self, result: CaseResult) -> CaseResult:
        """Add what the ranks have left in the server."""
        notes = [f"Key-value server, keys at the end of rank {rank}: {keys}." for rank, keys in self._used.items()]
        return dataclasses.replace(result, notes=(*result.notes, *notes))


def explain_unknown_key(result: CaseResult) -> CaseResult:
    """Say why a key may be unknown."""
    ranks = [outcome.rank for outcome in result.outcomes if "UnknownKeyError" in outcome.summary]
    if not ranks:
        return result
    note = f"Rank {ranks[0]} has read a key that no rank had set. A barrier between the two would order them."
    return dataclasses.replace(result, notes=(*result.notes, note))
