"""Starts the command: `python -m dist_testing.report`."""

from __future__ import annotations

import sys

from dist_testing.report.cli import main

if __name__ == "__main__":
    sys.exit(main())
