"""Lets the garbage collector rest while a run imports its modules.

The import of torch makes some 200,000 objects that live until the end, and hardly any garbage. The collector looks at
them again and again meanwhile: 0.15 to 0.2 s of CPU time, a tenth of the import.
"""

from __future__ import annotations

import gc

# What the process had before; None unless the collector rests.
_before: tuple[int, int, int] | None = None


def pause() -> None:
    """Start no collection from now on. The modules that are imported meanwhile see the collector switched on."""
    global _before
    thresholds = gc.get_threshold()
    if thresholds[0] and _before is None:
        _before = thresholds
        gc.set_threshold(0, *thresholds[1:])


def resume() -> None:
    """Collect as before `pause`, unless a module has set limits of its own meanwhile. A fork resumes for itself."""
    global _before
    before, _before = _before, None
    if before is not None and gc.get_threshold() == (0, *before[1:]):
        gc.set_threshold(*before)
