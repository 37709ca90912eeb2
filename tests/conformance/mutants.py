"""Plants public bugs in a process group that is right: one bug per run, chosen by the variable KIT_MUTANT.

The group is the library's own, whose ranks are threads. A bug is planted when a process makes its first group, so the
runner, which imports this module, too, stays right. Without the variable nothing changes: that is the plain wrapper.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from dist_testing.threaded.group import ThreadedGroup
from tests.conformance import mutants_of_calls, mutants_of_parts, mutants_of_values  # noqa: F401  # fill the table
from tests.conformance.mutant_tools import PLANTS

__all__ = ["PLANTS"]

_original_init = ThreadedGroup.__init__
_planting = threading.Lock()


def _init(self: Any, *given: Any, **more: Any) -> None:
    """Plant the chosen bug before the first group. The runner imports this module, too, and makes no group."""
    with _planting:
        number = int(os.environ.get("KIT_MUTANT") or 0)
        if number in PLANTS:
            PLANTS.pop(number)()
    _original_init(self, *given, **more)


ThreadedGroup.__init__ = _init  # type: ignore[method-assign]
