"""Runs kinds of hangs as a user would, with each way to make ranks, and reads what was said from the events."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dist_testing.core.events.event import CaseRecorded, Event
from dist_testing.core.ground.record import BAD
from dist_testing.event_file import read_events
from tests.support.hang_kinds import KINDS, WORLD_SIZE, HangKind

# "torchrun" is no isolation: the ranks exist already.
ISOLATIONS = ("fork", "pool", "spawn", "torchrun")
# Of a case whose hang is proven. Seconds.
LIMIT_S = 300.0
# A case whose hang cannot be proven ends here, so that a table takes minutes and not hours. Seconds.
SHORT_LIMIT_S = 8.0
_SOURCE = """
import pytest

from tests.support.hang_kinds import KINDS


class TestKinds:
    @pytest.mark.parametrize(
        "name",
        [
            pytest.param(name, marks=pytest.mark.distributed(world_size={size}, timeout=limit))
            for name, limit in {limits}
        ],
    )
    def test_hang(self, world, name):
        KINDS[name].body(world)
"""
_OPTIONS = ("-p", "dist_testing.core.pytest.plugin", "-q", "--tb=no", "--color=no", "-p", "no:cacheprovider")


@dataclass(frozen=True, slots=True)
class Told:
    """What the verdict on one hang says."""

    status: str
    cause: str
    reason: str
    culprit: int | None  # the rank that it blames
    # From the begin of the last rank's test to the verdict, in seconds: no less than from its last block.
    after_s: float


def run_kinds(names: Sequence[str], isolation: str, folder: Path) -> dict[str, Told]:
    """Run kinds of hangs, one after the other. Return what was said of each, by its name, if anything was said.

    `isolation` is one of `ISOLATIONS`. The folder takes the test file, the events and the output.
    """
    names = [name for name in names if isolation not in KINDS[name].otherwise]
    limits = [(name, SHORT_LIMIT_S if KINDS[name].why_not else LIMIT_S) for name in names]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (folder / "test_kinds.py").write_text(_SOURCE.format(size=WORLD_SIZE, limits=limits), encoding="utf-8")
    events = folder / "events.jsonl"
    pytest_command = ["-m", "pytest", *_OPTIONS, f"--dist-events={events}", "test_kinds.py"]
    if isolation == "torchrun":
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORLD_SIZE}"]
        command = [sys.executable, *launcher, *pytest_command]
    else:
        command = [sys.executable, *pytest_command, f"--dist-isolation={isolation}"]
    with (folder / "output.txt").open("wb") as output:
        subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
            # Fresh interpreters are slow on a busy machine.
            timeout=120.0 + 60.0 * len(limits),
        )
    return _told(read_events(events))


def _told(events: Sequence[Event]) -> dict[str, Told]:
    told = {}
    for event in events:
        if isinstance(event, CaseRecorded):
            case = event.record
            begun_s = max(phase.begin_s for rank in case.ranks for phase in rank.phases if phase.name == "call")
            status = "failed" if case.status in BAD else case.status
            name = case.name.partition("[")[2].rstrip("]")
            told[name] = Told(status, case.cause, case.message, case.culprit, case.duration_s - begun_s)
    return told


def complaint(kind: HangKind, isolation: str, told: Told | None) -> str:
    """Return what is wrong with what was said of a hang; "" if it is right."""
    if isolation in kind.otherwise:
        return ""
    if told is None:
        return "nothing was said"
    if (told.status, told.cause) != ("failed", "hang") and not (kind.why_not and told.status == "failed"):
        return f"{told.status} ({told.cause}): {told.reason}"
    if kind.said not in told.reason:
        return f"not said: {kind.said!r}; but {told.reason!r}"
    if told.culprit != kind.culprit and not (kind.why_not and told.culprit is None):
        return f"blamed: {told.culprit}; {told.reason}"
    # The next limit after the proof is that of the case.
    if not kind.why_not and told.after_s > LIMIT_S / 2:
        return f"only told at the deadline: {told.reason}"
    return ""
