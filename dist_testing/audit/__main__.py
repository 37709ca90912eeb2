"""Starts the command: `python -m dist_testing.audit`."""

from __future__ import annotations

import sys

from dist_testing.audit.cli import main

if __name__ == "__main__":
    sys.exit(main())
