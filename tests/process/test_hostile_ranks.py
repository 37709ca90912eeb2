"""Ranks that do what no test should: what a user sees of it is still one verdict with the right name, and soon."""

from __future__ import annotations

import ctypes
import json
import os
import re
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dist_testing import World
from dist_testing.core.engine.engine import Engine
from dist_testing.core.engine.report import failure_report
from dist_testing.core.ground.outcomes import Cause, Kind
from tests.support.children import run_cases
from tests.support.starter import Starter
from tests.support.worlds import alive, engine_for, run, to_the_deadline

# <sys/prctl.h> and <sys/ptrace.h>
_PR_SET_PTRACER = 0x59616D61
_ANY = -1
_ATTACH = 16


def _traced_by_its_child(world: World, arguments: dict[str, Any]) -> None:
    if world.rank != 1:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(_ANY % 2**64), 0, 0, 0)
    rank = os.getpid()
    if (tracer := os.fork()) == 0:
        error = 0 if libc.ptrace(_ATTACH, rank, 0, 0) == 0 else ctypes.get_errno()
        Path(arguments["note"]).write_text(json.dumps([os.getpid(), error]))
        # Never looks at what it traces.
        while True:
            time.sleep(1000)
    os.waitpid(tracer, 0)


def _fails_after_it_has_left(world: World, arguments: dict[str, Any]) -> None:
    if world.rank == 0:
        dist.recv(torch.ones(1), 1)
    dist.destroy_process_group()
    # A clean-up that takes its time.
    time.sleep(arguments["clean_up_s"])
    raise ValueError("the cause")


@pytest.fixture
def engine() -> Iterator[Engine]:
    """An engine for one test."""
    with engine_for({"traced": _traced_by_its_child, "left": _fails_after_it_has_left}) as engine:
        yield engine


def test_rank_that_leaves_its_group_before_it_fails_is_the_culprit(engine: Engine) -> None:
    """If this fails, a rank that only lost its peer is blamed: `finally: destroy_process_group()` is common."""
    result = run(engine, "left", world_size=2, arguments={"clean_up_s": 1.0})
    assert (result.verdict.culprit, result.verdict.victims) == (1, (0,)), failure_report(result)
    assert "ValueError: the cause" in result.verdict.reason
    # Too late: no rank is blamed, and the report has the error that is known.
    result = run(engine, "left", world_size=2, arguments={"clean_up_s": 600.0})
    assert (result.verdict.culprit, result.verdict.victims) == (None, (0,)), failure_report(result)
    assert result.verdict.reason == "rank 0 lost a peer, and rank 1 did not report in time"
    assert "dist.recv(torch.ones(1), 1)" in failure_report(result)


def test_rank_that_its_child_traces_is_killed_at_once(engine: Engine, tmp_path: Path) -> None:
    """If this fails, the runner waits for a rank that is dead, says that the machine has to be restarted, and goes."""
    note = tmp_path / "tracer"
    for result in to_the_deadline(engine, "traced", world_size=2, arguments={"note": str(note)}):
        if result.outcomes[1].kind is Kind.HUNG and note.exists():
            break
    tracer, error = json.loads(note.read_text())
    if error:
        pytest.skip(f"the kernel lets no child trace its parent: {os.strerror(error)}")
    assert (result.verdict.cause, result.verdict.culprit) == (Cause.HANG, 1), result
    assert result.outcomes[1].kind is Kind.HUNG
    assert "tracing stop" in failure_report(result)
    assert not alive(tracer)
    assert run(engine, "traced", world_size=1, arguments={"note": str(note)}).verdict.cause is Cause.NONE


_MESSAGES = """
    import os
    import sys
    import time
    import pytest
    import dist_testing

    def text(first, last):
        middle = (f"middle {number} {'x' * 100}" for number in range(first, last))
        return "\\n".join(["first line of it", *middle, "last line of it"])

    LONG, LESS = text(0, 30_000), text(13_000, 17_000)
    D = pytest.mark.distributed(world_size=2, init=False)

    @D
    def test_long(world):
        if world.rank == 1:
            raise ValueError(LONG)

    @D
    def test_many(world, subtests):
        for number in range(1000 if world.rank == 1 else 0):
            with subtests.test(number=number):
                assert number < 0, LONG[:2000]

    @D
    def test_binary(world):
        os.write(1, bytes(range(256)) * 100)
        if world.rank == 1:
            raise ValueError(bytes(range(256)).decode("latin-1") + "\\ud800")

    @D
    def test_prints(world):
        if world.rank == 1:
            print("the first words", flush=True)
            for _ in range(100):
                os.write(1, b"x" * (1 << 20))
            # The runner looks at the logs once a second.
            time.sleep(1.5)
            kept = os.fstat(1).st_blocks * 512
            print("the last words", flush=True)
            assert kept <= 64 << 20, kept
            raise ValueError("planted")

    @D
    def test_replaces_its_log(world):
        if world.rank == 1:
            log = os.readlink("/proc/self/fd/1")
            os.unlink(log)
            os.mkfifo(log)
            raise ValueError("planted")

    class TestThreads(dist_testing.MultiThreadedTestCase):
        world_size = 2

        def test_long_on_threads(self):
            if self.rank == 1:
                raise ValueError(LESS)

    class TestProcesses(dist_testing.MultiProcessTestCase):
        world_size = 2

        def test_long_on_processes(self):
            if self.rank == 1:
                raise ValueError(LESS)
    """


def test_messages_of_any_size_and_kind(starter: Starter, tmp_path: Path) -> None:
    """If this fails, the log does not end with the rank, the case and the error, or the whole text is nowhere."""
    pytest.importorskip("_pytest.subtests", reason="sub-tests need pytest 9")
    ended = run_cases(starter, tmp_path, _MESSAGES)
    tests = ("long", "many", "binary", "prints", "replaces_its_log", "long_on_threads", "long_on_processes")
    assert dict.fromkeys((f"test_{name}" for name in tests), "FAILED") == ended.outcomes(), ended.log[-20_000:]
    log = ended.log
    reports = ended.failures()
    screen = log.rstrip("\n").split("\n")[-40:]
    assert "7 failed" in screen[-1]
    for name, said in {
        "test_long": "raised ValueError: first line of it in call",
        "test_binary": "raised ValueError: ",
        "test_many": "raised AssertionError: first line of it in call",
        "test_prints": "raised ValueError: planted in call",
        "test_replaces_its_log": "raised ValueError: planted in call",
        "test_long_on_threads": "raised ValueError: first line of it in call",
        "test_long_on_processes": "raised ValueError: first line of it in call",
    }.items():
        # pytest cuts it at the width of the terminal.
        (line,) = [line for line in screen if re.match(rf"FAILED \S+::{name} - ", line)]
        assert line.partition(" - ")[2].startswith("rank 1 raised ")
        report = reports[name]
        assert f"{name} (world of 2): rank 1 {said}" in report[:4000]
        # Each report ends with it, too.
        end = "\n".join(report.rstrip("\n").split("\n")[-40:])
        assert f"{name} (world of 2): rank 1" in end or "rank 1 of 2 failed first" in end, end
    # What a terminal does not show as a character, or obeys.
    assert not {c for c in log if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t"}
    assert "Rank 1 has written 105 MB; of its output, only the first 16 MiB and the end were kept." in log
    assert "the output of this rank is lost: a test has replaced its log" in log
    assert "the last words" in log
    folder = tmp_path / ".pytest_cache" / "d" / "dist_testing-reports"
    for name in ("test_long", "test_long_on_threads", "test_long_on_processes"):
        (kept,) = [path for path in folder.iterdir() if f"{name}." in path.name]
        assert f"The whole report: {kept}" in log
        # pytest writes a mark before each line.
        assert re.search(r"^(E +)?middle 15000 x+$", kept.read_text(), re.MULTILINE)
