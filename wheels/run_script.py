"""Run a program of an installed package. The rule wheel_script fills in its name."""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points

SCRIPT = "{SCRIPT}"


def main() -> object:
    """Run the program with this process's arguments, and return its exit status."""
    # Of this file: no package is there, and a program must not find this module by accident.
    sys.path[:] = [
        entry for entry in sys.path if os.path.realpath(entry) != os.path.dirname(os.path.realpath(__file__))
    ]
    try:
        import _dist_testing_wheels as archive  # type: ignore[import-not-found]
    except ModuleNotFoundError:
        # The packages are there as a directory.
        pass
    else:
        archive.activate(os.path.dirname(archive.__file__))
    found = [*entry_points(group="console_scripts", name=SCRIPT)]
    if not found:
        names = sorted({point.name for point in entry_points(group="console_scripts")})
        return (
            f"wheel_script: no package has a program {SCRIPT!r}.\n"
            "The rule names another one, or the package is not among its deps.\n"
            f"The programs are: {', '.join(names)}."
        )
    sys.argv[0] = SCRIPT
    return found[0].load()()


if __name__ == "__main__":
    sys.exit(main())  # type: ignore[arg-type]
