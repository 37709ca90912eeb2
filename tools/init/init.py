#!/usr/bin/env python3
"""Adds dist_testing to a repository, or writes a new one; `--check` finds what no longer fits (docs/consumers.md)."""

from __future__ import annotations

import sys
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 - users start it with the Python that they have
    sys.exit(
        "init: this is Python {}.{}.\n  The program needs 3.11 or newer.\n  Start it with a newer one.".format(
            *sys.version_info
        )
    )

from consumer_setup.cli import main

if __name__ == "__main__":
    # Links are not followed: a link beside the user's repository is the clone's place for the user.
    sys.exit(main(program=Path(__file__).absolute()))
