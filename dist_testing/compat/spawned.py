"""The main module of a process that a test file starts by `torch.multiprocessing.spawn`: the file itself.

`python -m dist_testing.compat FILE` has multiprocessing import this module in place of FILE, so that the file gets this
library's classes in such a process, too.
"""

from __future__ import annotations

import multiprocessing.spawn
import os
import runpy
from pathlib import Path
from typing import Any

from dist_testing import compat

# $DIST_TESTING_COMPAT_FILE (internal): the test file, for processes that it starts.
_FILE = "DIST_TESTING_COMPAT_FILE"


def import_in_children(path: Path) -> None:
    """Have the processes that multiprocessing starts import a test file by this module."""
    os.environ[_FILE] = str(path.resolve())
    preparation = multiprocessing.spawn.get_preparation_data

    def with_compat(name: str) -> dict[str, Any]:
        data = preparation(name)
        # The main module has one of them; multiprocessing looks for the name first.
        data.pop("init_main_from_path", None)
        return {**data, "init_main_from_name": __name__}

    multiprocessing.spawn.get_preparation_data = with_compat


if __name__ == "__mp_main__":
    compat.install()
    globals().update(runpy.run_path(os.environ[_FILE], run_name=__name__))
