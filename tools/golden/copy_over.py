"""Copy a generated file over its checked-in copy: `copy_over.py <generated> <checked in>`.

Both are paths below the repository's root as `bazel run` sees them. The second is also the path of the file in the
source tree.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def main() -> int:
    """Copy the file, and print what was written."""
    source_tree = os.environ.get("BUILD_WORKSPACE_DIRECTORY")
    if not source_tree:
        sys.stderr.write("copy_over.py: started without Bazel. Use `./bazelw run` on its target.\n")
        return 1
    generated, checked_in = sys.argv[1:]
    # copyfile keeps the mode of the existing file; the generated one is read-only.
    shutil.copyfile(generated, Path(source_tree) / checked_in)
    sys.stderr.write(f"Wrote {checked_in}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
