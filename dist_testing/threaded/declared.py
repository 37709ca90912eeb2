"""Declares the isolation `thread`. It is loaded in every process that reads the name."""

from __future__ import annotations

from dist_testing.core.launch.fork import ForkServerLauncher
from dist_testing.core.launch.isolation import Isolation, Reuse

THREAD = Isolation(
    "thread",
    ForkServerLauncher,
    in_process_of="threads",
    reuse=Reuse.PROCESS,
    can_debug=False,
    has_exit_codes=False,
)
