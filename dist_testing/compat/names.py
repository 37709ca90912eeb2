"""The public functions and tables that `dist_testing` and `dist_testing.compat.common_distributed` both have.

Both import all of them with a star. A new name is added to the `__all__` of its module only.
"""

from dist_testing.compat.helpers import environment as _environment
from dist_testing.compat.helpers import running as _running
from dist_testing.compat.helpers.environment import *  # noqa: F403
from dist_testing.compat.helpers.running import *  # noqa: F403
from dist_testing.compat.requirements import accelerators as _accelerators
from dist_testing.compat.requirements import platforms as _platforms
from dist_testing.compat.requirements.accelerators import *  # noqa: F403
from dist_testing.compat.requirements.platforms import *  # noqa: F403
from dist_testing.core.ground.skips import TEST_SKIPS, TestSkip
from dist_testing.threaded.spawn_threads import spawn_threads_and_init_comms

__all__ = ["TEST_SKIPS", "TestSkip", "spawn_threads_and_init_comms"]
__all__ += _environment.__all__
__all__ += _running.__all__
__all__ += _accelerators.__all__
__all__ += _platforms.__all__
