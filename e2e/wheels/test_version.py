"""Fails unless the package has the version that the command line names, and its bytecode beside it."""

import sys
from pathlib import Path

import iniconfig
from versions import version

assert version() == sys.argv[1], f"{version()} instead of {sys.argv[1]}"
assert [*Path(iniconfig.__file__).parent.glob("__pycache__/__init__.*.pyc")], "compiled again in every test"
