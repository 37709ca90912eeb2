"""Configures pytest under Bazel by the files that a target declares, and by no other files.

pytest looks for a configuration and for conftest.py files in all folders above the tests. Where Bazel runs a test
outside a sandbox, these include the execution root, with links to files of the workspace that the target does not
declare. Such files would change the result of the test, but not its cache key.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from dist_testing.frontends.pytest.internals import load_config_dict_from_file

# pytest takes the first of these that holds a configuration for it ("Configuration file formats" in its reference).
_CONFIG_FILES = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")


def options(files: Sequence[str], repositories: Collection[str]) -> list[str]:
    """Return the options that tell pytest its root folder, its configuration, and the highest folder of a conftest.py.

    `repositories` are those of the files, as the runfiles name them; "" stands for an unknown one.
    """
    tests = Path(os.path.commonpath([os.path.dirname(file) for file in files]))
    root = _root(tests, repositories)
    return [f"--rootdir={root}", f"--confcutdir={root}", f"--config-file={_config_file(tests, root)}"]


def _root(tests: Path, repositories: Collection[str]) -> Path:
    """Return the repository's folder in the runfiles; of several repositories, the runfiles; else the tests' folder."""
    source = os.environ.get("TEST_SRCDIR")
    if source and "" not in repositories:
        root = Path(source, *repositories) if len(repositories) == 1 else Path(source)
        if tests.is_relative_to(root):
            return root
    return tests


def _config_file(tests: Path, root: Path) -> str:
    """Return the nearest configuration from the tests' folder up to the root; an empty one if there is none."""
    for folder in (tests, *tests.parents):
        for path in (folder / name for name in _CONFIG_FILES):
            if path.is_file() and _is_configuration(path):
                return str(path)
        if folder == root:
            break
    return os.devnull


def _is_configuration(path: Path) -> bool:
    try:
        return load_config_dict_from_file(path) is not None
    except pytest.UsageError:
        # pytest itself refuses the file with a better text.
        return True
