"""Huge pages of the fork server: when they pay, which memory they take, and in which steps."""

from __future__ import annotations

import ctypes
import errno
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dist_testing import huge_pages
from dist_testing.core.events.event import ForkServerMemory
from dist_testing.core.ground import procfs
from dist_testing.core.ground.procfs import free_bytes
from dist_testing.huge_pages import LEAST_FORKS, HugePages, in_use, plan, ranges_in

_HUGE = 2 << 20
_MAPS = """\
00400000-00c00000 r-xp 00000000 fe:00 77  /usr/bin/python3.11
00c00000-01000000 rw-p 00800000 fe:00 77  /usr/bin/python3.11
01234000-05678000 rw-p 00000000 00:00 0  [heap]
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
7f0000400000-7f0000800000 rw-s 00000000 00:01 9  /dev/zero (deleted)
7f0000800000-7f0000c00000 r--p 00000000 00:00 0
7f0001000000-7f0001200000 rw-p 00000000 00:00 0  [anon:of a library]
7f0001300000-7f0001500000 rw-p 00000000 00:00 0
7ffc00000000-7ffc00800000 rw-p 00000000 00:00 0  [stack]

no map at all
00400000-00c00000 rw-p 00000000
"""


def test_only_whole_huge_pages_of_own_anonymous_memory_are_taken() -> None:
    """Files, shared memory and the stack must stay as they are. A sandbox may have a /proc of its own."""
    assert ranges_in(_MAPS, _HUGE) == [
        range(0x01400000, 0x05600000),
        range(0x7F0000000000, 0x7F0000400000),
        range(0x7F0001000000, 0x7F0001200000),
    ]


def test_memory_that_is_used_is_taken_in_small_pieces() -> None:
    """A huge page takes the memory of all its small pages, also of those that were never touched."""
    with mmap.mmap(-1, 13 * _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        # Small pages only, whatever the mode of the kernel.
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        start = -(-first // _HUGE) * _HUGE
        for page in range(start - first, start - first + 10 * _HUGE, mmap.PAGESIZE):
            memory[page] = 1
        memory[start - first + 11 * _HUGE] = 1
        found = in_use([range(start, start + 12 * _HUGE)], _HUGE)
        # A request for a world waits for the end of a piece.
        assert [(one.start - start, one.stop - start) for one in found] == [(0, 8 * _HUGE), (8 * _HUGE, 10 * _HUGE)]


def test_facts_of_this_machine_can_be_read() -> None:
    """If this fails, huge pages are refused everywhere, and no log says so."""
    assert free_bytes() > 0
    assert plan()


@pytest.mark.parametrize(
    ("line", "root", "limit", "used", "cached"),
    [
        ("0::/", "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        (
            "4:memory:/docker/1:2",
            "/sys/fs/cgroup/memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
    ],
)
def test_the_limit_of_a_container_counts_without_the_cache_of_files(
    monkeypatch: pytest.MonkeyPatch, line: str, root: str, limit: str, used: str, cached: str
) -> None:
    """If this fails, --dist-jobs=auto has a container killed, or runs one world at a time after files were read."""
    files = {
        "/proc/meminfo": "MemTotal: 99 kB\nMemAvailable: 16777216 kB\n",
        "/proc/self/cgroup": f"1:cpu:/\n{line}\n",
        f"{root}/{limit}": "8589934592\n",
        f"{root}/{used}": "8589934592\n",
        f"{root}/memory.stat": f"anon 3221225472\n{cached} 5368709120\nactive_file 4096\n",
    }
    monkeypatch.setattr(procfs, "content_of", lambda path: files.get(path, "").encode())
    assert free_bytes() == 5 << 30
    del files[f"{root}/memory.stat"]
    assert free_bytes() == 0


def _pieces(count: int) -> list[range]:
    return [range(8 * number * _HUGE, 8 * (number + 1) * _HUGE) for number in range(count)]


class _Machine:
    """What the steps ask for and do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.free_bytes = 8 << 30
        self.in_use: list[range] | Exception = _pieces(3)
        self.errors: Sequence[int] = ()
        self.taken: list[range] = []
        folder.joinpath("enabled").write_text("always [madvise] never\n")
        folder.joinpath("hpage_pmd_size").write_text(f"{_HUGE}\n")
        monkeypatch.setattr(huge_pages, "_THP", str(folder))
        monkeypatch.setattr(huge_pages, "free_bytes", lambda: self.free_bytes)
        monkeypatch.setattr(huge_pages, "in_use", self._in_use)
        monkeypatch.setattr(huge_pages, "collapse", self._collapse)

    def steps(self) -> tuple[int, ForkServerMemory]:
        """The number of steps, and what the last one tells, in a run with many forks."""
        pages = HugePages(1000)
        pages.world_over()
        count, told = 0, None
        while told is None:
            count += 1
            assert count < 100
            pages.forked(4)
            assert pages.pause_ms(has_world=True) == 0
            told = pages.idle_step()
            pages.world_over()
        pages.forked(4)
        assert pages.pause_ms(has_world=True) is None, "it costs nothing more"
        return count, told

    def _in_use(self, *_: object) -> list[range]:
        if isinstance(self.in_use, Exception):
            raise self.in_use
        return self.in_use

    def _collapse(self, piece: range) -> int:
        error, *self.errors = self.errors or [0]
        if not error:
            self.taken.append(piece)
        return error


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> _Machine:
    """A machine that can."""
    return _Machine(monkeypatch, tmp_path)


def test_each_later_world_has_one_step(machine: _Machine) -> None:
    """The start of the ranks hides a step. The first case must not be slower than without, nor a request wait."""
    pages = HugePages(1000)
    pages.forked(4)
    assert pages.pause_ms(has_world=True) is None
    assert pages.idle_step() is None
    pages.world_over()
    for _ in range(2):
        pages.forked(4)
        assert pages.pause_ms(has_world=False) is None, "the next request would wait for the end of a step"
        assert pages.pause_ms(has_world=True) == 0
        pages.idle_step()
        assert pages.pause_ms(has_world=True) is None, "a second one could delay the end of the world"
        pages.idle_step()
        pages.world_over()
    assert len(machine.taken) == 1, "the plan, and a piece"


def test_each_step_takes_one_piece(machine: _Machine) -> None:
    """A request for a world waits for the end of a step."""
    count, last = machine.steps()
    assert (count, last.refusal, machine.taken) == (4, "", _pieces(3)), "the plan, and three pieces"


def test_unexpected_forks_make_it_pay_later(machine: _Machine) -> None:
    """A front end need not know its cases: after many forks, as many again are likely."""
    pages = HugePages(0)
    pages.world_over()
    pages.forked(LEAST_FORKS - 1)
    assert pages.pause_ms(has_world=True) is None, "a run would pay for copies that it never uses"
    assert pages.idle_step() is None, "also if other idle work is due"
    pages.forked(1)
    assert pages.pause_ms(has_world=True) == 0


@pytest.mark.parametrize(
    ("file", "content", "facts", "said"),
    [
        ("enabled", "always madvise [never]\n", {}, "transparent huge pages are never"),
        ("enabled", "", {}, "transparent huge pages are not known to this kernel"),
        ("hpage_pmd_size", "many\n", {}, "the kernel does not tell the size of a huge page"),
        # 512 MiB for others, and four times 48 MiB.
        ("other", "", {"free_bytes": 703 << 20}, "703 MiB of memory are free; 704 MiB must be"),
        # Some sandboxes hide the map of the memory; the fork server must go on.
        ("other", "", {"in_use": PermissionError("denied")}, "the map of this process cannot be read: denied"),
        ("other", "", {"in_use": ValueError("no number")}, "the map of this process cannot be read: no number"),
    ],
)
def test_a_machine_that_refuses_is_asked_once(
    machine: _Machine, tmp_path: Path, file: str, content: str, facts: dict[str, Any], said: str
) -> None:
    """It then costs nothing more. The event has the reason why a run is slower on another machine."""
    tmp_path.joinpath(file).write_text(content)
    vars(machine).update(facts)
    count, last = machine.steps()
    assert (count, last.refusal, machine.taken) == (1, said, [])


@pytest.mark.parametrize(
    ("errors", "steps", "taken", "said"),
    [
        # An old kernel knows no such request; a full machine has no free huge page.
        ([errno.EINVAL] * 4, 1 + 4, 0, "Linux 6.1"),
        ([errno.ENOMEM], 1 + 1, 0, "Cannot allocate memory"),
        ([errno.EINVAL, 0, 0], 1 + 13, 12, "Invalid argument"),
        ([0, 0, errno.ENOMEM], 1 + 3, 2, "Cannot allocate memory"),
        # The kernel moves single pages while memory is short, and takes the others.
        ([errno.EAGAIN] * 8, 1 + 13, 5, "temporarily"),
    ],
)
def test_a_refused_piece_stays_as_it_was(
    machine: _Machine, errors: list[int], steps: int, taken: int, said: str
) -> None:
    """If this fails, a kernel that cannot do it ends the fork server, or the log says that it was done."""
    machine.in_use, machine.errors = _pieces(13), errors
    count, last = machine.steps()
    assert (count, len(machine.taken)) == (steps, taken)
    assert said in last.refusal
    assert ("Linux 6.1" in last.refusal) == (taken == 0 and errno.EINVAL in errors)
