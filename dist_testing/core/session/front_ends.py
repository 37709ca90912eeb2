"""Rank front ends of a pytest session, by the name in a case: each is the half on the ranks of one kind of test."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from dist_testing.core.ground.errors import UsageError
from dist_testing.core.rank.bootstrap import RankFrontEnd

# Name -> "module:attribute", imported at the first use. The one of unittest classes is known from the start: a test may
# call `dist_testing.start_processes`, and so import it, when the process that ranks are forked from already exists.
_registered = {"unittest": "dist_testing.core.unittest.in_pytest:UnittestInPytest"}


def register_front_end(name: str, maker: str) -> None:
    """Make a rank front end known. Call it where the classes or items of its tests are defined.

    Args:
        name: `CaseBody.front_end` of its cases.
        maker: "module:attribute" of what makes a `RankFrontEnd` on a rank, from pytest's config and the items by
            node id. The path in it begins at pytest's root folder. It is imported on the rank.

    Raises:
        UsageError: If another front end has the name.
    """
    if _registered.setdefault(name, maker) != maker:
        raise UsageError(
            f"Front end {name!r} is registered twice: by {_registered[name]} and by {maker}.\n"
            "A case names one of them, and could get the other one.\n"
            "Rename one of them."
        )


def make_front_end(name: str, config: Any, items: Mapping[str, Any]) -> RankFrontEnd:
    """Make the front end of a name, on a rank."""
    if (maker := _registered.get(name)) is None:
        raise UsageError(
            f"A case has the front end {name!r}, and this rank knows {', '.join(_registered) or 'none'}.\n"
            "The module that registers it was imported in the runner, and not on the rank.\n"
            "Import it in the test file or in a conftest.py."
        )
    module, _, attribute = maker.partition(":")
    make: Callable[[Any, Mapping[str, Any]], RankFrontEnd] = getattr(importlib.import_module(module), attribute)
    return make(config, items)
