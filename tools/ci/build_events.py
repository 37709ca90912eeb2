"""The reader of build events (`dist_testing.report.build_events`), also for programs that plain Python starts.

The import of `dist_testing` needs psutil. These programs run where nothing is installed, so without psutil they get the
package without its `__init__.py`, as the tools do under Bazel.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

try:
    import dist_testing
except ImportError:
    _package = types.ModuleType("dist_testing")
    _package.__path__ = [str(Path(__file__).resolve().parents[2] / "dist_testing")]
    sys.modules["dist_testing"] = _package
else:
    del dist_testing

from dist_testing.report.build_events import (
    GOOD,
    Attempt,
    EventsError,
    Invocation,
    is_whole,
    read_events,
    read_invocation,
)

__all__ = ["GOOD", "Attempt", "EventsError", "Invocation", "is_whole", "read_events", "read_invocation"]
