"""Makes a fresh interpreter ready to run cells."""

from __future__ import annotations

from typing import NoReturn

from dist_testing.conformance.on_rank.front_end import CellContext
from dist_testing.core.launch.fresh import ThenBe


def load(state: str, then: ThenBe, test: str | None) -> NoReturn:
    """Be a rank or a fork server. There are no tests to collect: the cells are part of the package.

    Args:
        state: "preload", or "" for a run without functional collectives.
        then: Called with the rank context; does not return.
        test: Unused.
    """
    then(CellContext(preloads=bool(state)))
