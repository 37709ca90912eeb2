"""What this version of the library gives to a repository: the files of docs/consumers.md, and dist_testing.bazelrc.

The page is the only source: the files that it shows are the files that are written, so the two cannot differ.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from consumer_setup.problem import SetupError

MODULE = "dist_testing"
FLAGS_FILE = "dist_testing.bazelrc"

# A block of code with the name of its file. Files below `mine/` are those of a new repository.
_BLOCK = re.compile(r"^<!-- (\S+) -->\n```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_START = "mine/"
_COMMANDS = "mine:commands"


@dataclass(frozen=True, slots=True)
class Library:
    """This version.

    Attributes:
        root: Its folder: a clone, or the runfiles of this program.
        clone: Its folder in the source tree, which `local_path_override` can name.
        version: Its version.
        flags: Text of dist_testing.bazelrc.
        files: The files of a new repository: name to text.
        commands: The commands that follow, one each.
        bazel: The oldest and the newest Bazel, such as "7.4" and "8".
    """

    root: Path
    clone: Path
    version: str
    flags: str
    files: Mapping[str, str]
    commands: tuple[str, ...]
    bazel: tuple[str, str]


def read_library(program: Path) -> Library:
    """Read the library that a program of tools/init belongs to.

    Args:
        program: Path of a file in tools/init, links not followed.

    Raises:
        SetupError: If a file is missing.
    """
    # In runfiles every file is a link by itself.
    root = program.parents[2]
    try:
        page = (root / "docs" / "consumers.md").read_text(encoding="utf-8")
        module = (root / "MODULE.bazel").read_text(encoding="utf-8")
        flags = (root / FLAGS_FILE).read_text(encoding="utf-8")
        versions = json.loads((root / "dist_testing" / "versions.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise SetupError(
            f"'{error.filename}' cannot be read: {error.strerror}.",
            "The program reads the library's own files, and was copied without them.",
            "Start it in a clone of dist_testing: python3 <clone>/tools/init/init.py",
        ) from error
    blocks = dict(_BLOCK.findall(page))
    commands = blocks.get(_COMMANDS, "").replace("\\\n", "").splitlines()
    return Library(
        root=root,
        clone=_clone(program),
        version=_version(module),
        flags=flags,
        files={name.removeprefix(_START): text for name, text in blocks.items() if name.startswith(_START)},
        commands=tuple(re.sub(r"\s+", " ", command) for command in commands),
        bazel=(versions["bazel"]["oldest"], versions["bazel"]["newest"]),
    )


def _clone(program: Path) -> Path:
    """Return the folder of the library as the user sees it."""
    if any(part.endswith(".runfiles") for part in program.parts):
        return (program.parents[2] / "MODULE.bazel").resolve().parent
    # Started there, perhaps by a link beside the user's repository.
    folder = program.parents[2]
    return folder.parent.resolve() / folder.name


def _version(module: str) -> str:
    """Return the version that MODULE.bazel declares."""
    for node in ast.walk(ast.parse(module)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "module":
            for keyword in node.keywords:
                if keyword.arg == "version" and isinstance(keyword.value, ast.Constant):
                    return str(keyword.value.value)
    raise AssertionError("MODULE.bazel of the library declares no version")
