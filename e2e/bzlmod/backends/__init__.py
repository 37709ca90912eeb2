"""This consumer's own package of that name; the library has a folder `backends`, too."""

from __future__ import annotations

OWNER = "consumer"
