"""Does the same as `python -m dist_testing.gpus`, for `./bazelw run //tools/gpu`."""

from __future__ import annotations

import sys

from dist_testing.gpus.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
