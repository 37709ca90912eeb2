"""A module of a package without `__init__.py`, whose name the library's repository has, too."""

from __future__ import annotations

OWNER = "consumer"
