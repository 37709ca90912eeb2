"""Says which packages a program has."""

from importlib import metadata
from pathlib import Path

import iniconfig


def version() -> str:
    """Return the version of a package that every lock has, and show where it is."""
    print(Path(iniconfig.__file__).parent)
    return metadata.version("iniconfig")
