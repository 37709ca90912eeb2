#!/usr/bin/env python3
"""`bazel run @dist_testing//tools/rbe -- up`: a remote-execution cluster on this machine (docs/remote.md).

Also without Bazel: `python3 tools/rbe/rbe.py up`, in a clone.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

LIBRARY = Path(__file__).absolute().parents[2]

# Bazel has it on the path.
if not any(Path(entry, "debian_prefix").is_dir() for entry in sys.path):
    sys.path.append(str(LIBRARY / "tools" / "debian_prefix"))

from debian_prefix.errors import InstallError  # noqa: E402 - after the path is complete
from local_cluster.own_packages import bring_packages  # noqa: E402


def main() -> int:
    """Bring the packages, and run the command; return its exit status."""
    if sys.argv[1:] in (["-h"], ["--help"]) and importlib.util.find_spec("grpc") is None:
        # The command line itself needs the packages.
        print(
            f"{__doc__}\nCommands: up, status, logs, kill-worker, restart, down. The first one installs what they need."
        )
        return 0
    try:
        bring_packages(LIBRARY)
    except InstallError as error:
        sys.stderr.write(f"rbe: error: {error}\n")
        return 1
    # It imports what has just been installed.
    from local_cluster import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
