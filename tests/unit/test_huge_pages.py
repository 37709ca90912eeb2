"""Huge pages of the fork server: when they pay, which memory they take, and in which steps."""

from __future__ import annotations

import ctypes
import errno
import mmap
from collections.abc import Sequence
from pathlib import Path

import pytest

from dist_testing import huge_pages
from dist_testing.core.events.event import ForkServerMemory
from dist_testing.core.ground.procfs import free_bytes
from dist_testing.huge_pages import (
    LEAST_FORKS,
    HugePages,
    MemoryFacts,
    has_free_cpu,
    in_use,
    pieces,
    ranges_in,
    read_facts,
    refusal_of,
)

_HUGE = 2 << 20
_GOOD = MemoryFacts("madvise", _HUGE, 8 << 30, LEAST_FORKS)


@pytest.mark.parametrize("mode", ["always", "madvise"])
def test_huge_pages_pay_from_some_forks_on(mode: str) -> None:
    """Below that, a run would pay for copies that it never uses."""
    assert refusal_of(_GOOD._replace(mode=mode)) == ""
    assert str(LEAST_FORKS - 1) in refusal_of(_GOOD._replace(mode=mode, forks=LEAST_FORKS - 1))


@pytest.mark.parametrize(
    ("facts", "needed_bytes", "said"),
    [
        (_GOOD._replace(mode="never"), 0, "never"),
        (_GOOD._replace(mode=""), 0, "not known"),
        (_GOOD._replace(huge_bytes=0), 0, "size of a huge page"),
        (_GOOD._replace(free_bytes=512 << 20), 120 << 20, "512 MiB"),
        (_GOOD._replace(free_bytes=511 << 20), 0, "511 MiB"),
        (_GOOD._replace(free_bytes=1 << 30), 200 << 20, "1024 MiB"),
        (_GOOD._replace(forks=0), 0, "0 ranks"),
        (_GOOD._replace(forks=-1, free_bytes=-1, mode="whatever"), 0, "MiB"),
    ],
)
def test_a_reason_against_them_is_told(facts: MemoryFacts, needed_bytes: int, said: str) -> None:
    """The event of the run tells it, so that the user can see why a run is slower on another machine."""
    assert said in refusal_of(facts, needed_bytes)


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
"""


def test_only_whole_huge_pages_of_own_anonymous_memory_are_taken() -> None:
    """Files, shared memory and the stack must stay as they are; so must a mapping without a whole huge page."""
    assert ranges_in(_MAPS, _HUGE) == [
        range(0x01400000, 0x05600000),
        range(0x7F0000000000, 0x7F0000400000),
        range(0x7F0001000000, 0x7F0001200000),
    ]
    # A sandbox with a /proc of its own costs the gain, and nothing else.
    for other in ("", "\n\n", "no map at all\n", "00400000-00c00000 rw-p 00000000\n"):
        assert ranges_in(other, _HUGE) == []


def test_pieces_cover_the_ranges_and_are_small() -> None:
    """A request for a world waits for the end of a piece."""
    ranges = [range(9 * _HUGE), range(20 * _HUGE, 21 * _HUGE)]
    found = list(pieces(ranges, _HUGE, 4))
    assert [(one.start // _HUGE, one.stop // _HUGE) for one in found] == [(0, 4), (4, 8), (8, 9), (20, 21)]


def test_memory_that_is_hardly_used_is_left_alone() -> None:
    """A huge page takes the memory of all its small pages, also of those that were never touched."""
    with mmap.mmap(-1, 5 * _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        # Small pages only, whatever the mode of the kernel.
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        start = -(-first // _HUGE) * _HUGE
        for page in range(start - first, start - first + 2 * _HUGE, mmap.PAGESIZE):
            memory[page] = 1
        memory[start - first + 3 * _HUGE] = 1
        assert in_use([range(start, start + 4 * _HUGE)], _HUGE) == [range(start, start + 2 * _HUGE)]


def test_facts_of_this_machine_can_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If this fails, huge pages are refused everywhere and no log says so, or a kernel without them is an error."""
    assert free_bytes() > 0
    assert has_free_cpu() in (True, False)
    facts = read_facts(7)
    assert facts.forks == 7
    assert facts.mode in ("", "always", "madvise", "never")
    if facts.mode:
        assert facts.huge_bytes % mmap.PAGESIZE == 0
    # The folder is missing, or holds something else.
    monkeypatch.setattr(huge_pages, "_THP", str(tmp_path))
    assert read_facts(1)[:2] == ("", 0)
    tmp_path.joinpath("enabled").write_text("always madvise [never]\n")
    tmp_path.joinpath("hpage_pmd_size").write_text("many\n")
    assert read_facts(1)[:2] == ("never", 0)


class _Machine:
    """What the steps ask for and do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, errors: Sequence[int] = ()) -> None:
        self.has_free_cpu = False
        self.facts = _GOOD
        self.in_use = range(20 * _HUGE)
        self.taken: list[range] = []
        self._errors = list(errors)
        monkeypatch.setattr(huge_pages, "has_free_cpu", lambda: self.has_free_cpu)
        monkeypatch.setattr(huge_pages, "read_facts", lambda forks: self.facts._replace(forks=forks))
        self.error: Exception | None = None
        monkeypatch.setattr(huge_pages, "in_use", self._in_use)
        monkeypatch.setattr(huge_pages, "collapse", self._collapse)

    def steps(self) -> list[ForkServerMemory | None]:
        """What each step tells of a run that forks many ranks, on a machine with a free CPU."""
        self.has_free_cpu = True
        pages, told = HugePages(1000), []
        while pages.pause_ms(has_world=False) == 0:
            told.append(pages.idle_step())
        assert pages.pause_ms(has_world=True) is None, "it costs nothing more"
        return told

    def _in_use(self, *_: object) -> list[range]:
        if self.error is not None:
            raise self.error
        return [self.in_use]

    def _collapse(self, piece: range) -> int:
        error = self._errors.pop(0) if self._errors else 0
        if not error:
            self.taken.append(piece)
        return error


def test_the_first_world_has_the_cpus_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first case must not be slower than without huge pages; later ones gain more than they lose."""
    machine = _Machine(monkeypatch)
    pages = HugePages(1000)
    pauses = [pages.pause_ms(has_world=True) for _ in range(10)]
    assert None not in pauses
    assert 0 not in pauses
    assert pauses == sorted(pauses, key=lambda pause: pause or 0), "a long first case must not be woken all the time"
    assert pages.idle_step() is None
    assert machine.taken == []
    pages.forked(4)
    assert pages.pause_ms(has_world=True) != 0
    pages.world_over()
    assert pages.pause_ms(has_world=False) is None, "the next request would wait for the end of a step"


def test_a_busy_machine_does_one_step_for_each_later_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is hidden by the start of the ranks; a second one could delay the end of the world."""
    machine = _Machine(monkeypatch)
    pages = HugePages(1000)
    pages.world_over()
    for _ in range(2):
        pages.forked(4)
        assert pages.pause_ms(has_world=True) == 0
        pages.idle_step()
        assert pages.pause_ms(has_world=True) != 0
        pages.idle_step()
        pages.world_over()
    assert len(machine.taken) == 1, "the plan, and a piece"
    machine.has_free_cpu = True
    assert pages.pause_ms(has_world=True) == 0


def test_each_step_takes_one_piece_and_the_last_one_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request comes between two steps."""
    machine = _Machine(monkeypatch)
    *before, last = machine.steps()
    assert before == [None] * 3, "the plan, and three pieces"
    assert [(one.start // _HUGE, one.stop // _HUGE) for one in machine.taken] == [(0, 8), (8, 16), (16, 20)]
    assert last is not None
    assert last.refusal == ""


@pytest.mark.parametrize(
    ("facts", "error", "said"),
    [
        (_GOOD._replace(mode="never"), None, "never"),
        (_GOOD._replace(free_bytes=512 << 20), None, "512 MiB"),
        # Some sandboxes hide the map of the memory; the fork server must go on.
        (_GOOD, PermissionError(13, "Permission denied"), "Permission denied"),
        (_GOOD, ValueError("invalid literal for int()"), "invalid literal for int()"),
    ],
)
def test_a_machine_that_refuses_is_asked_once(
    monkeypatch: pytest.MonkeyPatch, facts: MemoryFacts, error: Exception | None, said: str
) -> None:
    """It then costs nothing more, and the log has the reason."""
    machine = _Machine(monkeypatch)
    machine.facts, machine.error = facts, error
    (told,) = machine.steps()
    assert told is not None
    assert said in told.refusal
    assert machine.taken == []


def test_unexpected_forks_make_it_pay_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front end need not know its cases: after many forks, as many again are likely."""
    machine = _Machine(monkeypatch)
    machine.has_free_cpu = True
    pages = HugePages(0)
    first = pages.idle_step()
    assert first is not None
    assert "0 ranks" in first.refusal
    pages.world_over()
    pages.forked(LEAST_FORKS - 1)
    assert pages.pause_ms(has_world=True) is None, "the reason is told once"
    assert pages.idle_step() is None, "also if another wait of the fork server ends in a step"
    pages.forked(1)
    assert pages.pause_ms(has_world=True) == 0
    assert pages.idle_step() is None
    assert pages.idle_step() is None
    assert machine.taken


@pytest.mark.parametrize(
    ("pages", "errors", "steps", "taken", "said"),
    [
        # An old kernel knows no such request; a full machine has no free huge page.
        (20, [errno.EINVAL] * 3, 4, 0, "Linux 6.1"),
        (20, [errno.ENOMEM], 2, 0, "Cannot allocate memory"),
        (20, [errno.EINVAL, 0, 0], 4, 2, "Invalid argument"),
        (20, [0, 0, errno.ENOMEM], 4, 2, "Cannot allocate memory"),
        # The kernel moves single pages while memory is short: a piece is tried once more.
        (100, [errno.EAGAIN] * 8, 1 + 13 + 8, 13, ""),
        (100, [errno.EAGAIN] * 26, 1 + 13 + 13, 0, "temporarily"),
    ],
)
def test_a_refused_piece_stays_as_it_was(
    monkeypatch: pytest.MonkeyPatch, pages: int, errors: list[int], steps: int, taken: int, said: str
) -> None:
    """If this fails, a kernel that cannot do it ends the fork server, or the log says that it was done."""
    machine = _Machine(monkeypatch, errors)
    machine.in_use = range(pages * _HUGE)
    told = machine.steps()
    assert (len(told), len(machine.taken)) == (steps, taken)
    assert told[-1] is not None
    assert said in told[-1].refusal
    assert bool(told[-1].refusal) == bool(said)
    assert ("Linux 6.1" in told[-1].refusal) == (taken == 0 and errno.EINVAL in errors)
