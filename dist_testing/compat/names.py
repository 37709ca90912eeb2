"""The public functions and tables that `dist_testing` and `dist_testing.compat.common_distributed` both have.

Both import all of them with a star. A new name is added to the `__all__` of its module only.
"""

from typing import TYPE_CHECKING

from dist_testing.compat.helpers import environment as _environment
from dist_testing.compat.helpers import running as _running
from dist_testing.compat.helpers.environment import *  # noqa: F403
from dist_testing.compat.helpers.running import *  # noqa: F403
from dist_testing.compat.requirements import accelerators as _accelerators
from dist_testing.compat.requirements import platforms as _platforms
from dist_testing.compat.requirements.accelerators import *  # noqa: F403
from dist_testing.compat.requirements.platforms import *  # noqa: F403
from dist_testing.core.ground.skips import TEST_SKIPS as TEST_SKIPS
from dist_testing.core.ground.skips import TestSkip as TestSkip
from dist_testing.threaded.spawn_threads import spawn_threads_and_init_comms as spawn_threads_and_init_comms

if not TYPE_CHECKING:
    # Tools for types know the names by the form of their imports.
    __all__ = ["TEST_SKIPS", "TestSkip", "spawn_threads_and_init_comms"]
    for _module in (_environment, _running, _accelerators, _platforms):
        __all__ += _module.__all__
