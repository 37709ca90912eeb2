"""What Bazel starts for a `dist_py_test` target."""

from __future__ import annotations

from dist_testing.runner.main import main

if __name__ == "__main__":
    raise SystemExit(main())
