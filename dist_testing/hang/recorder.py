"""Reads torch's flight recorder: the collectives that this process has begun; and tells them to the runner."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

from dist_testing.core.ground.case import CaseBody
from dist_testing.core.rank.hooks import RankService, ServedRank
from dist_testing.hang.call_details import details_of, watch_calls
from dist_testing.hang.ledger import CALLS, CALLS_ADD_ON, Call, CallsMade, Groups
from dist_testing.hang.waits import C10D

# Of one text in an answer, such as the shapes of a call's inputs. Characters.
MAX_TEXT = 200
# torch has a recorder for backends on the CPU, and one for NCCL.
_CPU_DUMP = "_dump_fr_trace_json"
# Of the backend whose calls the first one returns by default.
_CPU_BACKEND = "gloo"
_DEVICE_DUMP = "_dump_nccl_trace_json"


def recorded_calls(since_ns: int = 0) -> tuple[list[Call] | None, bool]:
    """Return the collectives that this process has begun, and whether the recorder has dropped none of them.

    Calls before `since_ns`, in nanoseconds since 1970, do not count. None in place of the calls if torch's recorder is
    off, or if this torch has none.
    """
    records = _records(_CPU_DUMP, of_cpu=True)
    calls: list[Call] = []
    is_complete = True
    for entries in records:
        if entries is None:
            return None, False
        calls += _calls(entries)
        oldest_ns = int(entries[0].get("time_created_ns") or 0) if entries else 0
        is_complete &= len(entries) < _recorder_size() or oldest_ns < since_ns
    if len(records) > 1:
        # A record by itself is in order, also if the clock was set back.
        calls.sort(key=lambda call: call.begun_ns)
    return [call for call in calls if call.begun_ns >= since_ns], is_complete


def device_calls() -> list[Call]:
    """Return the calls of backends that run them on a device."""
    return [call for entries in _records(_DEVICE_DUMP, of_cpu=False) for call in _calls(entries or [])]


def hooked_groups() -> list[Any]:
    """Return the groups whose calls torch records by hooks, because their backend does not: since torch 2.15."""
    c10d: Any = sys.modules.get(C10D)
    return list(getattr(c10d._world, "pg_flight_recorder_hooks", ())) if c10d is not None else []


def _records(dump: str, *, of_cpu: bool) -> list[list[dict[str, Any]] | None]:
    """What a flight recorder has, and what hooks have recorded of groups on the CPU, or of those on other devices.

    torch keeps the latter by the name that a backend gives itself. The CPU's recorder has gloo's name.
    """
    names = {
        group._get_backend(device).name()
        for group in hooked_groups()
        for device in group._device_types
        if (device.type == "cpu") == of_cpu
    }
    return [_recorded(dump), *(_recorded(_CPU_DUMP, backend=name) for name in sorted(names - {_CPU_BACKEND}))]


def calls_made(since_ns: int = 0, most: int | None = None) -> CallsMade:
    """Return what this process has called, with the details; of the CPU's calls at most the `most` newest."""
    groups = known_groups()
    calls, is_complete = recorded_calls(since_ns)
    calls = (calls or []) + [call for call in device_calls() if call.begun_ns >= since_ns]
    kept = calls if most is None else calls[-most:]
    return CallsMade(groups, tuple(with_details(kept, groups)), is_complete and len(kept) == len(calls))


def with_details(calls: Iterable[Call], groups: Groups) -> Iterator[Call]:
    """Yield the calls with what the recorder does not tell."""
    for call in calls:
        place, details = details_of(call.begun_ns, groups.get(call.group))
        yield dataclasses.replace(call, place=place[:MAX_TEXT], details=details[:MAX_TEXT])


def known_groups() -> Groups:
    """Return the groups that exist, and whose members this process knows."""
    c10d: Any = sys.modules.get(C10D)
    if c10d is None:
        return {}
    names = c10d._world.pg_names
    return {
        str(name): tuple(sorted(ranks, key=ranks.__getitem__))
        for group, ranks in list(c10d._world.pg_group_ranks.items())
        if (name := names.get(group)) is not None
    }


def _recorded(name: str, **backend: str) -> list[dict[str, Any]] | None:
    """The calls that a flight recorder of torch has, in the order in which they began; None if there is none."""
    torch = sys.modules.get("torch")
    if torch is None or _recorder_size() == 0:
        return None
    dump = getattr(getattr(torch._C, "_distributed_c10d", None), name, None)
    if dump is None:
        return None
    # Without entries it has recorded nothing yet; or the size in the environment is not the one that it began with.
    entries: list[dict[str, Any]] = (
        json.loads(dump(includeCollectives=True, onlyActive=False, **backend)).get("entries") or []
    )
    return sorted(entries, key=lambda entry: int(entry["record_id"]))


def _recorder_size() -> int:
    """How many calls torch's flight recorder holds; 0 if it is off."""
    size = os.environ.get("TORCH_FR_BUFFER_SIZE", "0")
    return int(size) if size.isascii() and size.isdigit() else 0


def _calls(entries: list[dict[str, Any]]) -> Iterator[Call]:
    generations: dict[str, list[int]] = {}
    for entry in entries:
        group = str(entry["process_group"][0])[:MAX_TEXT]
        # A group without a name is part of a backend of another one.
        if entry["is_p2p"] or not group:
            continue
        seen = generations.setdefault(group, [])
        if entry["pg_id"] not in seen:
            seen.append(entry["pg_id"])
        backend, _, operation = str(entry["profiling_name"]).rpartition(":")
        yield Call(
            group=group,
            generation=seen.index(entry["pg_id"]),
            number=int(entry["collective_seq_id"]),
            backend=backend[:MAX_TEXT],
            operation=operation[:MAX_TEXT],
            sizes=str(entry["input_sizes"])[:MAX_TEXT],
            dtypes=" ".join(dict.fromkeys(map(str, entry["input_dtypes"])))[:MAX_TEXT],
            is_done=bool(entry["retired"]) or entry.get("state") == "completed",
            limit_ms=int(entry["timeout_ms"]),
            begun_ns=int(entry.get("time_created_ns") or 0),
            ended_ns=int(entry.get("time_discovered_completed_ns") or 0),
        )


class CallRecord(RankService):
    """Tells which calls a rank has made: where they are compared, and where the rank has failed.

    Reading the recorder costs some 10 us for each call that it holds.
    """

    def __init__(self, rank: ServedRank) -> None:
        self._reporter = rank.reporter
        self._in_process = bool(rank.start.request.in_process_of)
        # A process that runs one case only has made all its calls in it, those of its start included.
        self._is_fresh = not rank.start.request.pool and rank.start.fork_server_pid != os.getpid()
        # When the case began, in nanoseconds since 1970.
        self._began_ns = 0

    def case_begin(self, body: CaseBody) -> None:
        """Note which calls belong to earlier cases."""
        # The test may have imported torch only now.
        watch_calls()
        if not self._is_fresh:
            self._began_ns = time.time_ns()

    def case_end(self, body: CaseBody) -> None:
        """Tell the calls of a case that compares them."""
        if body.strict_calls:
            self._tell()

    def close(self) -> None:
        """Tell the calls if the rank has failed: it ends, and cannot be asked any more."""
        if self._reporter.failed and not self._in_process:
            self._tell()

    def _tell(self) -> None:
        self._reporter.extra(CALLS_ADD_ON, CALLS.to_wire(calls_made(self._began_ns)).decode())


# Once, before the fork server forks its ranks.
watch_calls()
