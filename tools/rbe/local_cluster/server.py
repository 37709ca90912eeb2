"""Starts BuildGrid's server after creating the tables of its database: one start of Python instead of two.

Usage: python -m local_cluster.server DATABASE CONFIG
"""

from __future__ import annotations

import sys

from buildgrid.server.app import cli


def main(database: str, config: str) -> None:
    """Create or update the tables, then serve until SIGTERM."""
    cli.main(["migrate", "apply", database], standalone_mode=False)
    cli.main(["server", "start", config], standalone_mode=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
