"""Cells that a script describes: one function per cell, called on every rank.

These modules import no torch, because the runner imports them to know the cells. A script gets torch from its `Kit`.
"""

from __future__ import annotations

import importlib

_MODULES = (
    "asynchronous",
    "barriers",
    "coalescing",
    "debug_wrapper",
    "life",
    "limits",
    "methods",
    "names_and_settings",
    "objects",
    "point_to_point",
    "shared_rules",
    "subgroups",
    "values",
)


def load_scripts() -> None:
    """Import every module of scripts, which registers their cells."""
    for name in _MODULES:
        importlib.import_module(f"{__name__}.{name}")
