"""Moves the memory of the fork server to huge pages, so that a fork copies fewer page tables.

A fork of a process with torch copies the page tables of about 140 MB, and the end of each rank frees them: half the
price of a fresh world. In huge pages (2 MiB instead of 4 KiB) the same memory needs almost no page tables. The kernel
copies memory into a huge page on request (`MADV_COLLAPSE`, Linux 6.1). The fork server asks for a few at a time, when
it has just forked the ranks of a world and would wait for them. The first world has the CPUs for itself.

The copies belong to the fork server alone, which shared the small pages with the runner. So a run needs as much more
memory as they have, once. Ranks share them as they shared the small pages.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import time
from collections.abc import Iterator, Sequence

from dist_testing.core.events.event import ForkServerMemory
from dist_testing.core.ground.procfs import content_of, free_bytes

# <asm-generic/mman-common.h>, since Linux 6.1.
_MADV_COLLAPSE = 25
_THP = "/sys/kernel/mm/transparent_hugepage"
# There is no work before so many ranks: from then on their forks and ends gain more than the copies cost; measured with
# tools/bench/launch.
LEAST_FORKS = 24
# Free memory that a run leaves to others: this much, and this many times what the copies need.
_SPARE_BYTES = 512 << 20
_SPARE_TIMES = 4
# Largest share of unused pages: a huge page takes their memory, too.
_MOST_UNUSED = 0.25
# Huge pages per system call. The kernel waits for every CPU in each call, on a busy machine for 0.1 s; the copies take
# 0.7 ms each.
_AT_ONCE = 8
# The kernel may lack room for one piece. After so many refusals in a row it will not take the next one either.
_MOST_REFUSALS = 4
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

# Loaded at import, as in `process.lifetime`. Python's own `mmap.madvise` takes no foreign memory.
_madvise = ctypes.CDLL(None, use_errno=True).madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
# Keeps the two highest bits of a byte.
_PRESENT = bytes(byte & 0xC0 for byte in range(256))


def ranges_in(maps: str, huge_bytes: int) -> list[range]:
    """Return the addresses of private, writable, anonymous memory in `/proc/<pid>/maps`, in whole huge pages."""
    found = []
    for line in maps.splitlines():
        # Address, permissions, offset, device, inode, and a name that may contain spaces.
        fields = line.split(maxsplit=5)
        if len(fields) < 5 or not fields[1].startswith("rw") or fields[1][3] != "p":
            continue
        if len(fields) == 6 and not fields[5].startswith(("[heap]", "[anon")):
            continue
        low, high = (int(address, 16) for address in fields[0].split("-"))
        start, end = -(-low // huge_bytes) * huge_bytes, high // huge_bytes * huge_bytes
        if start < end:
            found.append(range(start, end))
    return found


def in_use(ranges: Sequence[range], huge_bytes: int) -> list[range]:
    """Return the parts of ranges of this process whose huge pages would be mostly full, each for one system call."""
    found: list[range] = []
    pages = huge_bytes // _PAGE_BYTES
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        for one in ranges:
            for start in one[::huge_bytes]:
                # Eight bytes per page. The two highest bits of the last one: in memory, or swapped out.
                entries = os.pread(pagemap.fileno(), 8 * pages, start // _PAGE_BYTES * 8)
                if len(entries) != 8 * pages or entries[7::8].translate(_PRESENT).count(0) > _MOST_UNUSED * pages:
                    continue
                is_next = found and found[-1].stop == start and len(found[-1]) < _AT_ONCE * huge_bytes
                found.append(range(found.pop().start if is_next else start, start + huge_bytes))
    return found


def plan() -> list[range] | str:
    """Return the pieces of this process's memory to move, or why there are none."""
    # Such as "always [madvise] never".
    mode = content_of(f"{_THP}/enabled").partition(b"[")[2].partition(b"]")[0].decode()
    if mode in ("", "never"):
        return f"transparent huge pages are {mode or 'not known to this kernel'}"
    size = content_of(f"{_THP}/hpage_pmd_size").strip()
    if not size.isdigit():
        return "the kernel does not tell the size of a huge page"
    huge_bytes = int(size)
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            pieces = in_use(ranges_in(maps.read(), huge_bytes), huge_bytes)
    except (OSError, ValueError) as error:
        return f"the map of this process cannot be read: {error}"
    least_bytes = _SPARE_BYTES + _SPARE_TIMES * sum(map(len, pieces))
    if (free := free_bytes()) < least_bytes:
        return f"{free >> 20} MiB of memory are free; {least_bytes >> 20} MiB must be"
    return pieces or "no memory fills a huge page"


class HugePages:
    """Moves this process to huge pages in steps, one for each world, between other work of its single thread."""

    def __init__(self, forks: int) -> None:
        """Begin. `forks` is the number of ranks that will be forked, as far as it is known; 0 if it is not."""
        self._forks = forks
        self._forked = 0
        self._has_had_world = False
        self._is_due = False
        self._is_over = False
        self._work = self._steps()
        self._has_taken = False
        self._work_s = 0.0

    def forked(self, ranks: int) -> None:
        """Count the ranks of a new world: a process that has forked many will probably fork as many again."""
        self._forked += ranks
        self._forks = max(self._forks, self._forked)
        # They need longer to start than a step needs, also on a busy machine.
        self._is_due = self._has_had_world

    def world_over(self) -> None:
        """Note that a world has been: the first one must not wait for this work, or share its CPUs with it."""
        self._has_had_world = True

    def pause_ms(self, *, has_world: bool) -> int | None:
        """Return 0 if there is something to do now, else None.

        `has_world` says whether ranks run. Between two worlds there is nothing to do, because a request for the next
        world would wait for the end of a step, which can be long on a busy machine.
        """
        return 0 if has_world and self._is_due and not self._is_over and self._forks >= LEAST_FORKS else None

    def idle_step(self) -> ForkServerMemory | None:
        """Do a part of the work, in some milliseconds. Return its result if this was the last part, else None."""
        if self.pause_ms(has_world=True) is None:
            return None
        self._is_due = False
        start_s = time.perf_counter()
        refusal = next(self._work)
        self._work_s += time.perf_counter() - start_s
        if refusal is None:
            return None
        self._is_over = True
        huge_bytes, pss_bytes = _own_memory() if self._has_taken else (0, 0)
        return ForkServerMemory(time.monotonic(), huge_bytes, pss_bytes, self._work_s, refusal)

    def _steps(self) -> Iterator[str | None]:
        """Do the work, with a `yield` after each part: of None, or at the end of why it ends; "" if all is done."""
        planned = plan()
        if isinstance(planned, str):
            yield planned
            return
        last_error = refusals = 0
        for piece in planned:
            if refusals == _MOST_REFUSALS or last_error == errno.ENOMEM:
                break
            yield None
            error = collapse(piece)
            # If other work in the kernel holds pages of a piece (EAGAIN), the other huge pages of the piece are made.
            if error in (0, errno.EAGAIN):
                self._has_taken, refusals = True, 0
            else:
                refusals += 1
            last_error = error or last_error
        hint = "; Linux 6.1 is the first that can" if last_error == errno.EINVAL and not self._has_taken else ""
        yield f"the kernel refuses to collapse pages: {os.strerror(last_error)}{hint}" if last_error else ""


def collapse(piece: range) -> int:
    """Ask the kernel to copy memory of this process into huge pages. Return 0, or its error number."""
    return 0 if _madvise(piece.start, len(piece), _MADV_COLLAPSE) == 0 else ctypes.get_errno()


def _own_memory() -> tuple[int, int]:
    """Return the bytes of this process in huge pages, and those of its share of all memory; zeros if not known."""
    found = dict(re.findall(rb"^(AnonHugePages|Pss): +(\d+) kB", content_of("/proc/self/smaps_rollup"), re.MULTILINE))
    return int(found.get(b"AnonHugePages", 0)) << 10, int(found.get(b"Pss", 0)) << 10
