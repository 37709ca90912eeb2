"""Commands around `bazel test`: `bazel run @dist_testing//tools/ci -- SUBCOMMAND [ARGUMENT...]`.

`SUBCOMMAND --help` shows the arguments.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

_REPORT = "dist_testing.report.__main__:main"
# Sub-command -> the function that gets its arguments, and what it does. Only its module is imported.
SUBCOMMANDS = {
    "test": ("job:main", "run the tests of a CI job: one summary, one page, one exit status"),
    "page": (_REPORT, "make a page of test results"),
    "ran-nowhere": (_REPORT, "list the cases that no job of a matrix has run"),
    "ran-nothing": ("results:ran_nothing", "list the targets that passed and ran no case"),
    "flakes": ("flakes:main", "measure how often tests fail without a change"),
    "timings": ("results:timings", "write how long cases take, for sharding"),
    "tags": ("tags:main", "find unknown tags, and tests that no CI job runs"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sub-command, and return its exit status: 2 if there is none of this name."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    name, *rest = given or [""]
    if name in ("-h", "--help"):
        print(_usage())
        return 0
    if name not in SUBCOMMANDS:
        sys.stderr.write(f"{_usage()}\n\nci: {f'there is no sub-command {name!r}' if name else 'no sub-command'}\n")
        return 2
    module, function = SUBCOMMANDS[name][0].split(":")
    try:
        # It finds the library where nothing is installed.
        importlib.import_module("build_events")
        into_pipe = importlib.import_module("dist_testing.report.pipe").into_pipe
        subcommand = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as missing:
        sys.exit(f"ci: {missing}. Run it by Bazel: bazel run @dist_testing//tools/ci -- {name}")
    # The program of the pages makes one if its first argument is no sub-command of its own.
    status: int = into_pipe(lambda: subcommand([name, *rest] if name == "ran-nowhere" else rest))
    return status


def _usage() -> str:
    return "\n".join([__doc__.strip(), "", *(f"    {name:<13}{what}" for name, (_, what) in SUBCOMMANDS.items())])


if __name__ == "__main__":
    sys.exit(main())
