"""Seeds the random generators of unittest's tests, as torch's test classes do."""

from __future__ import annotations

import importlib
import random
import sys
from typing import Any

# With which torch's test classes start every test.
_SEED = 1234


def load_generators() -> None:
    """Import numpy's random generators, which every test seeds. Otherwise each rank imports them."""
    if "numpy" in sys.modules:
        importlib.import_module("numpy.random")


def seed_generators() -> None:
    """Seed the random generators, so that every test gets the same numbers on all ranks."""
    random.seed(_SEED)
    if (numpy_random := sys.modules.get("numpy.random")) is not None:
        numpy_random.seed(_SEED)
    if (torch := sys.modules.get("torch")) is not None:
        # torch notes the seed of each kind of device that is not in use yet, each time with the stack as text: 4 ms on
        # a new rank. If the process that forked the rank has seeded, the notes are there.
        if torch.initial_seed() != _SEED or _is_accelerator_in_use(torch):
            torch.manual_seed(_SEED)
        else:
            torch.default_generator.manual_seed(_SEED)


def _is_accelerator_in_use(torch: Any) -> bool:
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return False
    is_initialized = getattr(torch.get_device_module(accelerator), "is_initialized", None)
    # A device that does not tell may be in use.
    return is_initialized is None or bool(is_initialized())
