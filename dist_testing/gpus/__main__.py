"""`python -m dist_testing.gpus`: the GPUs of this machine, and the processes that lease them."""

from __future__ import annotations

import argparse
import sys

from dist_testing.errors import DistTestingError
from dist_testing.gpus.listing import listing


def main() -> int:
    """Print the listing."""
    argparse.ArgumentParser(prog="python -m dist_testing.gpus", description=__doc__).parse_args()
    try:
        print("\n".join(listing()))
    except DistTestingError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
