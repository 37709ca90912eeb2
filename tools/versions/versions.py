#!/usr/bin/env python3
"""Runs this library's suites with other versions of torch and Python: `python3 tools/versions/versions.py --help`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

ROOT = Path(__file__).absolute().parents[2]

if not any(Path(entry, "debian_prefix").is_dir() for entry in sys.path):
    sys.path.append(str(ROOT / "tools" / "debian_prefix"))

from version_runs import cli  # noqa: E402 - after the path is complete

if __name__ == "__main__":
    # A shell starts background jobs with SIGINT ignored, and pytest, which gets it at its limit, would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(cli.main(ROOT))
