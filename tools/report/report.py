"""Make a page of test results: `bazel run @dist_testing//tools/report -- [RESULTS...]` (`dist_testing.report`)."""

from __future__ import annotations

import sys

from dist_testing.report.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
