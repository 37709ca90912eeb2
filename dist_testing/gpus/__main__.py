"""`python -m dist_testing.gpus`: the GPUs of this machine, and the processes that lease them.

Exit status: 0 if the listing was printed or written; 1 if the GPUs cannot be read, or the file cannot be written; 2 if
the command line is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from dist_testing.core.ground.errors import DistTestingError
from dist_testing.gpus.gpu import GpuError
from dist_testing.gpus.listing import bazelrc, listing

_HOST_BAZELRC = "dist_testing_host.bazelrc"


def main() -> int:
    """Print the listing, or write the flags of this machine."""
    parser = argparse.ArgumentParser(prog="python -m dist_testing.gpus", description=__doc__)
    parser.add_argument(
        "--bazelrc",
        nargs="?",
        const=_HOST_BAZELRC,
        metavar="FILE",
        help=f"write Bazel's flags for this machine instead; by default to {_HOST_BAZELRC} in the workspace, which "
        "dist_testing.bazelrc imports",
    )
    options = parser.parse_args()
    try:
        if options.bazelrc is None:
            print("\n".join(listing()))
        else:
            _write(Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY", ""), options.bazelrc))
    except DistTestingError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _write(file: Path) -> None:
    text = bazelrc()
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise GpuError(
            f"{file} cannot be written: {error.strerror}.\n"
            "It gets Bazel's flags for the GPUs of this machine.\n"
            "Name another file: --bazelrc=FILE."
        ) from error
    print(f"{file}:\n{text}", end="")


if __name__ == "__main__":
    sys.exit(main())
