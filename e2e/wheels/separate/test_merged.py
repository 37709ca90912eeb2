"""Checks that a package finds the library of another one."""

from __future__ import annotations

import blue  # type: ignore[import-not-found]  # only in the runfiles

assert blue.SHADE == "crimson"
