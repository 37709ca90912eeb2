"""The faults that the audit plants, and the plan of a run, which the hook reads inside the suite's processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# What each fault does to one rank.
FAULTS: Final[dict[str, str]] = {
    "raise": "raises AssertionError",
    "kill": "is killed by SIGKILL",
    "exit0": "calls os._exit(0)",
    "exit3": "calls os._exit(3)",
    "skip": "skips the test (unittest.SkipTest)",
    "return": "returns early",
    "hang": "hangs",
}

# Faults after which the whole process of the rank is gone.
ENDS_PROCESS: Final = frozenset({"kill", "exit0", "exit3"})

# When a fault comes, from the latest moment to the earliest.
MOMENTS: Final[dict[str, str]] = {
    "own": "at the first collective call of the test itself",
    "collective": "at the first collective call",
    "init": "after init_process_group",
}


@dataclass(frozen=True)
class Plan:
    """What one run of the command does (`hook.record.Plan` is the other side)."""

    case: str | None = None  # Id of the one case to run; None for all
    fault: str | None = None  # name of the fault; None for none
    rank: int = 0  # the rank that gets it
    moment: str = "init"  # a key of MOMENTS
    hold_s: float = 0.0  # how long a rank hangs at most, in seconds
    collectives: bool = True  # whether to look at collective calls
