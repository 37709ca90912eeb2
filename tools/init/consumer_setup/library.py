"""What this version of the library gives to a repository: the files of docs/consumers.md, and dist_testing.bazelrc.

The page is the only source: the files that it shows are the files that are written, so the two cannot differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MODULE = "dist_testing"
FLAGS_FILE = "dist_testing.bazelrc"

# A block of code with the name of its file. Files below `mine/` are those of a new repository.
_BLOCK = re.compile(r"^<!-- (\S+) -->\n```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_START = "mine/"
_IMPORT = re.compile(r"^(?:try-)?import\s+%workspace%/(\S+)", re.MULTILINE)
_COMMANDS = "mine:commands"


class SetupError(Exception):
    """The repository cannot be changed or read. The text has three lines: what, the likely cause, the way out."""

    def __init__(self, what: str, cause: str, way_out: str) -> None:
        super().__init__(problem(what, cause, way_out))


def problem(what: str, cause: str, way_out: str) -> str:
    """Return one complaint: the subject with what was observed, the likely cause, what the user can do."""
    return f"{what}\n  {cause}\n  {way_out}"


def read_text(path: Path) -> str:
    """Return the text of a file."""
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise SetupError(
            f"'{path}' cannot be read: {error.strerror}.",
            "The program reads the files of the repository, and those of the library beside it.",
            "Make it readable; start the program in a whole clone of dist_testing.",
        ) from error
    except UnicodeDecodeError as error:
        raise SetupError(f"'{path}' cannot be read: it is not UTF-8.", f"{error}.", "Repair or remove it.") from error


def read_flags(folder: Path, name: str) -> str:
    """Return the text of a .bazelrc file and of those that it imports from the repository; a missing one is empty."""
    text = read_text(folder / name) if (folder / name).exists() else ""
    return "\n".join([text, *(read_flags(folder, imported) for imported in _IMPORT.findall(text))])


@dataclass(frozen=True, slots=True)
class Library:
    """This version."""

    clone: Path  # its folder in the source tree, which `local_path_override` can name
    version: str  # its version
    flags: str  # text of dist_testing.bazelrc
    files: Mapping[str, str]  # the files of a new repository: name to text
    commands: tuple[str, ...]  # the commands that follow, one each
    bazel: tuple[str, str]  # the oldest and the newest Bazel, such as "7.4" and "8"


def read_library(program: Path) -> Library:
    """Read the library that a file in tools/init belongs to; links are not followed.

    Raises:
        SetupError: If a file is missing.
    """
    # In runfiles every file is a link by itself.
    root = program.parents[2]
    versions = json.loads(read_text(root / "dist_testing" / "versions.json"))
    blocks = dict(_BLOCK.findall(read_text(root / "docs" / "consumers.md")))
    # The first version in the file is the module's own.
    version = re.search(r'version = "([^"]+)"', read_text(root / "MODULE.bazel"))
    assert version is not None
    return Library(
        clone=_clone(program),
        version=version[1],
        flags=read_text(root / FLAGS_FILE),
        files={name.removeprefix(_START): text for name, text in blocks.items() if name.startswith(_START)},
        commands=tuple(re.sub(r"\s+", " ", command) for command in blocks[_COMMANDS].replace("\\\n", "").splitlines()),
        bazel=(versions["bazel"]["oldest"], versions["bazel"]["newest"]),
    )


def _clone(program: Path) -> Path:
    """Return the folder of the library as the user sees it."""
    if any(part.endswith(".runfiles") for part in program.parts):
        return (program.parents[2] / "MODULE.bazel").resolve().parent
    # Started there, perhaps by a link beside the user's repository.
    folder = program.parents[2]
    return folder.parent.resolve() / folder.name
