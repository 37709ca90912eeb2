"""A memory limit of a case: its ranks are killed when they, with all processes below them, use more together.

The memory of a process is what it holds alone, and its share of what it holds together with others. So the pages that
ranks inherit from the fork server do not count for each of them in full. The pages of libraries, which are files, do
not count at all. The kernel takes 30 to 100 ms to find that number for a rank with torch. So the limit is first
compared with a larger number, which takes 10 microseconds.
"""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dist_testing.core.engine.hooks import CaseStart, EndCase, WorldWatcher
from dist_testing.core.ground.case import CaseResult
from dist_testing.core.ground.error_text import ranks_text
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.outcomes import Cause, Kind
from dist_testing.core.ground.procfs import children_of, content_of
from dist_testing.core.ground.spec import Spec

NAME = "memory_limit"
_OPTION = "--dist-memory-limit"
_TEXT = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)([KMGT])iB", re.ASCII)
_SHIFTS = {"K": 10, "M": 20, "G": 30, "T": 40}
# A process with torch needs more. Bytes.
_LEAST_BYTES = 1 << 20
# Seconds between two looks; and the part of the runner's time that they may take.
_LOOK_S = 0.1
_TIME_PART = 0.1
# Fields of proc(5)'s `status`: more than the process uses, because pages that it shares count in full.
_QUICK = (b"RssAnon:", b"RssShmem:", b"VmSwap:")
# Fields of proc(5)'s `smaps_rollup`, in which each of n processes has the n-th part of a shared page.
_EXACT = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit of all ranks of a case together."""

    text: str  # as the user wrote it, such as "2GiB"
    size: int  # in bytes

    def __str__(self) -> str:
        return self.text


def read_limit(subject: str, value: object) -> Limit:
    """Return the limit that a test, a target or the command line sets, such as "2GiB"; `subject` begins an error."""
    if isinstance(value, Limit):
        return value
    found = _TEXT.fullmatch(value) if isinstance(value, str) else None
    size = int(float(found[1]) * (1 << _SHIFTS[found[2]])) if found else 0
    if size < _LEAST_BYTES:
        raise UsageError(
            f"{subject}: {NAME} = {value!r}; expected a size from 1MiB, with its unit: KiB, MiB, GiB or TiB.\n"
            "It is the limit of the memory that all ranks of a case use together.\n"
            'Write "2GiB", for example, or leave it out.'
        )
    return Limit(str(value), size)


def from_options(spec: Spec, given: Mapping[str, str]) -> Limit:
    """Return the limit that the command line sets for all cases that set none."""
    return read_limit(_OPTION, given[_OPTION])


class MemoryWatch(WorldWatcher):
    """Ends the cases of one world that use more than their limit."""

    def begin_case(self, start: CaseStart) -> None:
        """Forget the last case. On a worker pool this one may have no limit."""
        self._limit: Limit | None = start.case.settings.get(NAME)
        self.next_s = start.began_s if self._limit else math.inf
        # Of each process of ranks: what it and its descendants used when that was measured, at most. Bytes.
        self._peaks: dict[tuple[int, ...], int] = {}
        self._ended = False

    def poll(self, now_s: float) -> EndCase | None:
        """Compare the memory of the ranks with the limit."""
        if self._limit is None or now_s < self.next_s:
            return None
        self.next_s = now_s + _LOOK_S
        if not self._world.is_running:
            return None
        began_s = time.monotonic()
        trees = {ranks: list(_tree(pid)) for pid, ranks in self._ranks_by_pid().items()}
        total = sum(_quick_bytes(pid) for pids in trees.values() for pid in pids)
        if total > self._limit.size:
            used = {ranks: sum(map(_used_bytes, pids)) for ranks, pids in trees.items()}
            total = sum(used.values())
            self._peaks |= {ranks: max(size, self._peaks.get(ranks, 0)) for ranks, size in used.items()}
        self.next_s += (time.monotonic() - began_s) / _TIME_PART
        if total <= self._limit.size:
            return None
        self._ended = True
        most = max(used, key=lambda ranks: used[ranks])
        who = f"{ranks_text(most)}, {_mib(used[most])}"
        return EndCase(f"the ranks use {_mib(total)}, and {NAME} is {self._limit}: most of it {who}")

    def _ranks_by_pid(self) -> dict[int, tuple[int, ...]]:
        """Return the processes of the ranks that run. Ranks that are threads have one together."""
        found: dict[int, tuple[int, ...]] = {}
        for record in self._world.records:
            if record.pid is not None and not record.has_ended:
                found[record.pid] = (*found.get(record.pid, ()), record.rank)
        return found

    def explain(self, result: CaseResult) -> CaseResult:
        """Tell the peaks of the ranks, and blame a rank that used more than twice as much as each other."""
        if not self._peaks:
            return result
        peaks = sorted(self._peaks.items(), key=lambda peak: -peak[1])
        text = ", ".join(f"{ranks_text(ranks)} {_mib(size)}" for ranks, size in peaks)
        result = dataclasses.replace(
            result,
            facts={**result.facts, "memory_peaks": text},
            notes=(*result.notes, f"Memory of the ranks at its peak: {text}."),
        )
        ranks, most = peaks[0]
        verdict = result.verdict
        is_ours = self._ended and verdict.cause is Cause.FAILURE and verdict.culprit is None
        if is_ours and len(ranks) == 1 and all(most > 2 * size for _, size in peaks[1:]):
            stopped = tuple(one.rank for one in result.outcomes if one.kind is Kind.STOPPED and one.rank not in ranks)
            result = dataclasses.replace(
                result, verdict=dataclasses.replace(verdict, culprit=ranks[0], victims=stopped)
            )
        return result


def _tree(pid: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    yield pid
    for child in children_of(pid):
        yield from _tree(child)


def _quick_bytes(pid: int) -> int:
    """Return a bound of the memory of a process: it uses at most that."""
    return _sum(content_of(f"/proc/{pid}/status"), _QUICK)


def _used_bytes(pid: int) -> int:
    """Return the memory of a process, with its share of what it has together with others."""
    rollup = content_of(f"/proc/{pid}/smaps_rollup")
    # A process that has changed its user may not be looked at.
    return _sum(rollup, _EXACT) if rollup else _quick_bytes(pid)


def _sum(content: bytes, fields: tuple[bytes, ...]) -> int:
    """Return the sum of some fields, in bytes; 0 of a process that has ended."""
    return sum(int(line.split()[1]) << 10 for line in content.splitlines() if line.startswith(fields))


def _mib(size: int) -> str:
    return f"{size >> 20} MiB"
