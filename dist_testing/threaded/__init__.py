"""A world whose ranks are threads of one process, and the process group that moves tensors between them.

README.md says what is where. The package is imported only if a test asks for ranks that are threads, or names `thread`.
"""

from __future__ import annotations

from dist_testing.core.launch.fork import ForkServerLauncher
from dist_testing.core.launch.isolation import Isolation, Reuse

# What torch knows the group by.
BACKEND = "threaded"
THREAD = Isolation(
    "thread",
    ForkServerLauncher,
    in_process_of="threads",
    reuse=Reuse.PROCESS,
    can_debug=False,
    has_exit_codes=False,
)
