"""Cells that a script describes: one function per cell, called on every rank.

These modules import no torch, because the runner imports them to know the cells. A script gets torch from its `Kit`.
"""

from __future__ import annotations

import importlib
import pkgutil


def load_scripts() -> None:
    """Import every module of scripts, which registers their cells."""
    for found in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{found.name}")
