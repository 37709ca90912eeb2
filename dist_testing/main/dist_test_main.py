"""The main program of a `dist_py_test` target.

Exit status: 0 if every case passed or was skipped, or a filter or shard has no case; 1 if a case failed, every case was
skipped on promised hardware, or the run ended too early; 5 if the target has no case; N as pytest ends: for Bazel every
code but 0 is a failure.
"""

from __future__ import annotations

if __name__ == "__main__":
    try:
        from dist_testing.core.bazel.main import main

        status: int | str = main()
    except ModuleNotFoundError as error:
        from dist_testing.core.bazel.missing_package import missing_package

        text = missing_package(error)
        if text is None:
            raise
        status = text
    raise SystemExit(status)
