"""`./bazelw run //tools/rbe -- up`: a remote-execution cluster on this machine (docs/remote.md)."""

from __future__ import annotations

import sys

from local_cluster.cli import main

if __name__ == "__main__":
    sys.exit(main())
