"""Fails unless this is the named Python, with the hub's wheels for it: `test_python.py 3.12 pypi.default_3_12`."""

import sys
from pathlib import Path

import markupsafe
from markupsafe import _speedups  # its compiled part, which another Python cannot import

version, repository = sys.argv[1:]
assert "{}.{}".format(*sys.version_info) == version, f"Python {sys.version} instead of {version}"
folders = Path(markupsafe.__file__).parts
assert any(folder.endswith(repository) for folder in folders), f"{markupsafe.__file__}: not from {repository}"
assert f"cpython-{version.replace('.', '')}-" in Path(_speedups.__file__).name, _speedups.__file__
print(sys.version, markupsafe.__file__)
