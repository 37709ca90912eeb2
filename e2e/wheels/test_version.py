"""Fails unless the package has the version that the command line names, and its bytecode beside it.

A dist_py_test loads the pytest plugins of the packages that its deps name, and the runfiles tell which these are.
"""

import os
import sys
from pathlib import Path

import iniconfig
from versions import version

assert version() == sys.argv[1], f"{version()} instead of {sys.argv[1]}"
assert [*Path(iniconfig.__file__).parent.glob("__pycache__/__init__.*.pyc")], "compiled again in every test"
named = {path.name for path in Path(os.environ["TEST_SRCDIR"]).glob("*/_named/*")}
expected = {"iniconfig", "packages.txt"} | ({"pyflakes"} if "by_requirement" in os.environ["TEST_TARGET"] else set())
assert named == expected, named
