"""What Bazel starts for a `dist_py_test` target."""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):
    # Later versions are told by the environment (PYTHONSAFEPATH) not to put the main program's folder first. There it
    # would make every module of this package importable by its bare name, before the standard library.
    del sys.path[0]

from dist_testing.bazel.main import main

if __name__ == "__main__":
    raise SystemExit(main())
