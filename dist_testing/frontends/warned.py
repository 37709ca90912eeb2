"""Makes warnings of the runner from the warnings of ranks."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator

from dist_testing.case import CaseResult

__all__ = ["warnings_of"]


def warnings_of(result: CaseResult) -> Iterator[warnings.WarningMessage]:
    """Yield each warning once, with its ranks."""
    for warning in result.warnings:
        ranks = ", ".join(map(str, warning.ranks))
        yield warnings.WarningMessage(
            f"{warning.text} [rank{'s' if len(warning.ranks) > 1 else ''} {ranks}]",
            _class_named(warning.category),
            warning.filename,
            warning.line_number,
        )


def _class_named(name: str) -> type[Warning]:
    """Return the class of that name if its module is loaded, else UserWarning. A rank must not trigger an import."""
    module, _, qualified = name.rpartition(".")
    found = getattr(sys.modules.get(module), qualified, None)
    return found if isinstance(found, type) and issubclass(found, Warning) else UserWarning
