"""Files of lines: .bazelrc, with the files that it imports, .gitignore, and lists of packages."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from consumer_setup.module_file import read_text

NAME = ".bazelrc"

_IMPORT = re.compile(r"^(?:try-)?import\s+(?:%workspace%/)?(\S+)$")
# A flag that always counts: not in a configuration (`build:gpu`).
_FLAG = re.compile(r"^(?:common|build|test)\s+(.*)$")
_LABEL_FLAG = re.compile(r"--@{0,2}([\w.+~-]*//[\w/.-]*:[\w.-]+)=(\S+)")
_REQUIREMENT = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Flags:
    """What the .bazelrc file of a repository sets, whatever the configuration.

    Attributes:
        values: Flag, without leading `@`, to its last value.
        imports: The imported files, relative to the repository.
    """

    values: dict[str, str]
    imports: frozenset[str]


def read_flags(folder: Path) -> Flags:
    """Read the .bazelrc of a folder and the files that it imports; empty if there is none.

    Raises:
        SetupError: If one cannot be read.
    """
    values: dict[str, str] = {}
    imports: set[str] = set()
    _read_into(folder, NAME, values, imports)
    return Flags(values, frozenset(imports))


def _read_into(folder: Path, name: str, values: dict[str, str], imports: set[str]) -> None:
    if not (folder / name).exists():
        return
    for line in read_text(folder / name).replace("\\\n", " ").splitlines():
        if (found := _IMPORT.match(line.strip())) and found[1] not in imports:
            imports.add(found[1])
            _read_into(folder, found[1], values, imports)
        if flag := _FLAG.match(line.strip()):
            values.update(_LABEL_FLAG.findall(flag[1]))


def missing_lines(template: str, is_missing: Callable[[str], bool]) -> str:
    """Return the parts of a file that another one lacks.

    Args:
        template: The whole file: paragraphs with comments before lines.
        is_missing: Whether the other file lacks a line.

    Returns:
        The missing lines with the comments of their paragraph. The template itself, if all are missing.
    """
    paragraphs = []
    for paragraph in template.rstrip("\n").split("\n\n"):
        lines = paragraph.split("\n")
        if any(not line.startswith("#") and is_missing(line) for line in lines):
            paragraphs.append("\n".join(line for line in lines if line.startswith("#") or is_missing(line)))
    return "\n\n".join(paragraphs) + "\n" if paragraphs else ""


def packages(text: str) -> set[str]:
    """Return the packages that a requirements file names, spelled as hubs spell them."""
    return {re.sub(r"[-_.]+", "_", name).lower() for name in _REQUIREMENT.findall(text)}
