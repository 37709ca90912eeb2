"""Exceptions of the bootstrap alone; the others are in `debian_prefix.errors`."""

from __future__ import annotations


class ReleaseUnavailableError(Exception):
    """The release server does not answer or lacks the file; another way may still work."""
