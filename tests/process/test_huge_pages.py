"""The fork server moves its memory to huge pages while it waits, or says why not; no verdict depends on it."""

from __future__ import annotations

import errno
import gc
import os
import platform
import weakref
from pathlib import Path
from typing import Any

import pytest

from dist_testing import World, huge_pages
from dist_testing.core.engine.engine import Engine
from dist_testing.core.events.event import ForkServerMemory
from dist_testing.core.ground.outcomes import Status
from tests.support.worlds import engine_for, run

_MODES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def _huge_bytes(pid: int) -> int:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    return sum(int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("AnonHugePages"))


def _pass(world: World, body: dict[str, Any]) -> None:
    world.barrier()


def _note(world: World, body: dict[str, Any]) -> None:
    Path(body["folder"], f"huge-{world.rank}").write_text(str(_huge_bytes(os.getppid())), encoding="ascii")


def _told(engine: Engine, folder: Path) -> ForkServerMemory:
    """Run a case for each step of the fork server, and one that notes its memory; return what it has told."""
    found: list[ForkServerMemory] = []
    engine.events.subscribe(found.append, ForkServerMemory, name="the test")
    engine.prepare(1000)
    for _ in range(40):
        if not found:
            assert run(engine, "pass", world_size=2).verdict.status is Status.PASSED
    assert run(engine, "note", world_size=2, arguments={"folder": str(folder)}).verdict.status is Status.PASSED
    (event,) = found
    return event


def test_the_fork_server_gets_huge_pages(tmp_path: Path) -> None:
    """Half the price of a fresh world is page tables, which huge pages do not need."""
    if not _MODES.exists() or "[never]" in _MODES.read_text(encoding="ascii"):
        pytest.skip("transparent huge pages are switched off on this machine")
    if tuple(map(int, platform.release().split(".")[:2])) < (6, 1):
        pytest.skip(f"Linux {platform.release()} cannot collapse pages on request; 6.1 can")
    with engine_for({"pass": _pass, "note": _note}) as engine:
        event = _told(engine, tmp_path)
    if "of memory are free" in event.refusal:
        pytest.skip(event.refusal)
    # Other processes of the machine can make the kernel use single pages at any moment.
    assert event.refusal in ("", f"the kernel refuses to collapse pages: {os.strerror(errno.EAGAIN)}")
    # torch's import leaves about 140 MB.
    assert event.huge_bytes > 32 << 20
    # Shared with the ranks that run.
    assert event.pss_bytes > 0
    assert event.work_s > 0
    # What the kernel said to a rank about its parent, later.
    assert int(tmp_path.joinpath("huge-0").read_text()) > 32 << 20


def test_a_kernel_that_refuses_changes_no_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The gain is optional: the verdicts are the same, and the event has the reason."""
    tmp_path.joinpath("enabled").write_text("always [madvise] never\n")
    tmp_path.joinpath("hpage_pmd_size").write_text(str(2 << 20))
    # The fork server is forked from this process, with the changes.
    monkeypatch.setattr(huge_pages, "_THP", str(tmp_path))
    monkeypatch.setattr(huge_pages, "free_bytes", lambda: 8 << 30)
    monkeypatch.setattr(huge_pages, "collapse", lambda piece: errno.EINVAL)
    with engine_for({"pass": _pass, "note": _note}) as engine:
        event = _told(engine, tmp_path)
    assert "Invalid argument" in event.refusal
    assert event.huge_bytes == 0


class _Node:
    """An object that only the garbage collector frees."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_of_tests_is_still_collected_in_the_runner() -> None:
    """The runner hides the objects of imports from the collector, once: objects that tests make are not hidden."""
    counts = []
    for _ in range(2):
        with engine_for({"pass": _pass}) as engine:
            garbage = weakref.ref(_Node())
            engine.prepare()
            counts.append(gc.get_freeze_count())
    assert counts[0] > 100_000, "the objects of torch's import"
    assert counts[1] <= counts[0], "a second fork server must not hide what tests have made since"
    gc.collect()
    assert garbage() is None
