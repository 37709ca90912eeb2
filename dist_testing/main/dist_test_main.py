"""The main program of a `dist_py_test` target."""

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
