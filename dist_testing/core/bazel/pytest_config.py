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

from dist_testing.core.bazel.protocol import DEBUG_RANK_VARIABLE
from dist_testing.core.ground.add_ons import AddOn
from dist_testing.core.ground.spec import Spec
from dist_testing.core.pytest.internals import load_config_dict_from_file

_NAMED_PLUGINS = ("-p", "dist_testing.core.bazel.named_plugins")
# pytest takes the first of these that holds a configuration for it ("Configuration file formats" in its reference).
_CONFIG_FILES = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")


def test_session(
    files: Sequence[str], repositories: Collection[str], arguments: Sequence[str], *, fail_fast: bool
) -> list[str]:
    """Return pytest's command line for the test files of a target. `arguments` are its `args`: more options.

    `repositories` are those of the files, as the runfiles name them; "" stands for an unknown one.
    """
    tests, root = _folders(files, repositories)
    return [
        *files,
        *_NAMED_PLUGINS,
        # The sandbox is read-only, and Bazel deletes it.
        *("-p", "no:cacheprovider"),
        # Does not change sys.path: the folder of a test must not shadow the consumer's packages.
        "--import-mode=importlib",
        f"--rootdir={root}",
        f"--confcutdir={root}",
        f"--config-file={_config_file(tests, root)}",
        *(() if any(text.endswith("no:terminal") for text in arguments) else ("-rs",)),
        *(("--exitfirst",) if fail_fast else ()),
        *arguments,
    ]


def add_on_session(
    add_on: AddOn, spec: Spec, file: str, repositories: Collection[str], arguments: Sequence[str]
) -> tuple[list[str], object]:
    """Return pytest's command line for a file that an add-on runs in its own way, and the plugin that does.

    `arguments` are the target's `args`, which are the add-on's own.
    """
    _, root = _folders([file], repositories)
    command, plugin = add_on.load("session")(spec, file, arguments)
    rank = os.environ.pop(DEBUG_RANK_VARIABLE, None)
    options = [] if rank is None else [f"--dist-debug-rank={rank}"]
    return [*command, *_NAMED_PLUGINS, f"--rootdir={root}", "-rs", *options], plugin


def _folders(files: Sequence[str], repositories: Collection[str]) -> tuple[Path, Path]:
    """Return the tests' folder, and the root.

    The root is the repository's folder in the runfiles; of several repositories, the runfiles; else the tests' folder.
    """
    tests = Path(os.path.commonpath([os.path.dirname(file) for file in files]))
    # $TEST_SRCDIR (Bazel): directory of the target's runfiles.
    source = os.environ.get("TEST_SRCDIR")
    if source and "" not in repositories:
        root = Path(source, *repositories) if len(repositories) == 1 else Path(source)
        if tests.is_relative_to(root):
            return tests, root
    return tests, tests


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
