#!/usr/bin/env python3
"""Compare verdicts: every fault of a table, on torch's own test classes and on the library.

    python tools/bench/verdicts.py [--only ROW,...] [--limit 20] [--json FILE] [--no-torch] [--quick]

Each fault is real, and happens in a test that a child process runs: with torch's `MultiProcessTestCase` and the
library's, which share the test's body, or with torch's `MultiProcContinuousTest` and the library's kept ranks. Noted
are the verdict, the seconds until it was printed, whether its message tells which rank did what, and what is left of
processes and temporary files afterwards. What does not end is stopped, and all that is left is killed.

A run of the whole table takes about twenty minutes and writes docs/compared_with_torch.md; otherwise the table is only
printed. torch's classes need the packages expecttest, hypothesis and numpy; without them, use --no-torch.
"""

from __future__ import annotations

import sys

from verdicts.main import main

if __name__ == "__main__":
    sys.exit(main())
