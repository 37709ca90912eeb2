"""Compares a repository with this version of the library."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from consumer_setup.library import FLAGS_FILE, MODULE, Library
from consumer_setup.line_files import NAME as RC_FILE
from consumer_setup.line_files import Flags, packages, read_flags
from consumer_setup.module_file import NAME as MODULE_FILE
from consumer_setup.module_file import ModuleFile, read_module_file, read_text
from consumer_setup.module_plan import PACKAGES, dependency_problems, lock_of, named_packages
from consumer_setup.plan import REQUIREMENTS, WORKSPACE_FILES
from consumer_setup.problem import Problem

VERSION_FILE = ".bazelversion"

# Lines of a difference that are shown.
_SHOWN = 40


def drift(library: Library, folder: Path, command: str) -> list[Problem]:
    """Say in what a repository differs from what this version needs.

    Args:
        library: This version.
        folder: The repository.
        command: How this program was started, for the ways out.

    Raises:
        SetupError: If a file cannot be understood.
    """
    module = read_module_file(folder)
    flags = read_flags(folder)
    if module is None and not any((folder / name).exists() for name in WORKSPACE_FILES):
        return [
            Problem(
                f"'{folder}' has no {MODULE_FILE}.",
                "It is not the root of a Bazel repository.",
                f"Name the root (--dir=FOLDER), or make it one: {command}",
            )
        ]
    found = _module_problems(library, module, command) if module else []
    found += _package_problems(module, flags, command) + _flag_problems(flags, command)
    found += _copy_problems(library, folder, command)
    found += _version_problems(library, folder)
    if module:
        found += _lock_problems(library, folder, module, flags)
    return found


def _module_problems(library: Library, module: ModuleFile, command: str) -> list[Problem]:
    if MODULE not in module.dependencies:
        return [
            Problem(
                f"{MODULE_FILE} has no bazel_dep on {MODULE}.",
                "The repository does not use the library yet, or gets it in another way.",
                f"Add it: {command}",
            )
        ]
    return dependency_problems(library, module)


def _package_problems(module: ModuleFile | None, flags: Flags, command: str) -> list[Problem]:
    named = named_packages(module or ModuleFile(), flags)
    missing = ", ".join(name for name in PACKAGES if name not in named)
    if not missing:
        return []
    what, way_out = f"{MODULE_FILE} does not name {missing} for the library.", f"Add {MODULE}.packages(): {command}"
    if module is None:
        what, way_out = f"{RC_FILE} does not name {missing} for the library.", "Add the flags of docs/consumers.md."
    return [
        Problem(what, "It takes these packages from the repository's own hub, and has no default for them.", way_out)
    ]


def _flag_problems(flags: Flags, command: str) -> list[Problem]:
    found = []
    if FLAGS_FILE not in flags.imports:
        found.append(
            Problem(
                f"{RC_FILE} does not import {FLAGS_FILE}.",
                "Without it Bazel refuses GPU targets, and --config=gpu, ci and others do not exist.",
                f"Add the line `import %workspace%/{FLAGS_FILE}`: {command}",
            )
        )
    return found


def _copy_problems(library: Library, folder: Path, command: str) -> list[Problem]:
    path = folder / FLAGS_FILE
    if not path.exists():
        return [
            Problem(f"{FLAGS_FILE} does not exist.", "It was not copied, or it was removed.", f"Write it: {command}")
        ]
    text = read_text(path)
    if text == library.flags:
        return []
    names = ("this repository", f"{MODULE} {library.version}")
    lines = list(difflib.unified_diff(text.splitlines(), library.flags.splitlines(), *names, n=0, lineterm=""))
    shown = lines[:_SHOWN] + ([f"... {len(lines) - _SHOWN} more lines"] if len(lines) > _SHOWN else [])
    if not lines:
        shown = ["The line ends differ."]
    difference = "\n".join(f"    {line}" for line in shown)
    return [
        Problem(
            f"{FLAGS_FILE} differs from that of {MODULE} {library.version}:\n{difference}",
            "It was copied from another version, or changed by hand.",
            f"Replace it: {command} --update. Flags of your own belong into {RC_FILE}, below the import.",
        )
    ]


def _version_problems(library: Library, folder: Path) -> list[Problem]:
    path = folder / VERSION_FILE
    if not path.exists():
        return []
    wanted = (read_text(path).splitlines() or [""])[0].strip()
    found = re.match(r"(\d+)(?:\.(\d+))?", wanted)
    oldest, newest = (tuple(int(part) for part in text.split(".")) for text in library.bazel)
    if found is None:
        # "latest", a fork, a commit: only Bazelisk knows what that is today.
        return []
    version = tuple(int(part) for part in found.groups() if part)
    if version >= oldest[: len(version)] and version[: len(newest)] <= newest:
        return []
    return [
        Problem(
            f"{VERSION_FILE} asks for Bazel {wanted}.",
            f"{MODULE} {library.version} works with {library.bazel[0]} to {library.bazel[1]}.",
            "Name one of those there.",
        )
    ]


def _lock_problems(library: Library, folder: Path, module: ModuleFile, flags: Flags) -> list[Problem]:
    found = []
    for hub in sorted({*named_packages(module, flags).values()} - {""}):
        lock = lock_of(module, hub)
        if lock is None:
            continue
        if not (folder / lock).is_file():
            what, cause = f"{lock}, the lock file of @{hub}, does not exist.", "It was not made yet, or it was removed."
            found.append(Problem(what, cause, "Make it: docs/consumers.md has the command."))
        elif lacking := sorted(packages(library.files[REQUIREMENTS]) - packages(read_text(folder / lock))):
            what, cause = f"{lock} lacks {', '.join(lacking)}.", "The library imports these packages from the hub."
            found.append(Problem(what, cause, "Add them to the file that it is made from, and lock again."))
    return found
