#!/usr/bin/env python3
"""Builds the archives of a release and checks them: `python3 tools/release/release.py --help`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# `bazel run` tells where the sources are.
ROOT = Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY") or Path(__file__).absolute().parents[2])

# It runs the tutorial by the code of that page's test.
if not any(Path(entry, "tests", "support").is_dir() for entry in sys.path):
    sys.path.insert(1, str(ROOT))

from release_steps import cli  # noqa: E402 - after the path is complete

if __name__ == "__main__":
    sys.exit(cli.main(ROOT))
