#!/usr/bin/env python3
"""Compare the verdicts of torch's own test classes and of the library on a table of faults.

    python tools/bench/verdicts.py [--only ROW,...] [--limit 20] [--no-torch] [--quick]

Each fault is real, and happens in a test that a child process runs: with torch's `MultiProcessTestCase` and the
library's, which share the test's body, or with torch's `MultiProcContinuousTest` and the library's worker pool. The
program records the verdict, the seconds until it was printed, whether its message tells which rank did what, and the
processes and temporary files that are left. It stops a suite that does not end, and kills everything that is left.

A run of the whole table takes about twenty minutes and writes docs/evidence/compared_with_torch.md; other runs only
print their rows. torch's classes need the packages expecttest, hypothesis and numpy; without them, use --no-torch.
"""

from __future__ import annotations

import sys

from verdict_table.main import main

if __name__ == "__main__":
    sys.exit(main())
