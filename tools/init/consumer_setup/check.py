"""Compares a repository with this version of the library."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path

from consumer_setup.library import FLAGS_FILE, MODULE, Library, problem, read_flags, read_text
from consumer_setup.module_file import NAME as MODULE_FILE
from consumer_setup.module_file import ModuleFile, read_module_file

# The library's packages, as the flags and the tag name them.
PACKAGES = ("torch", "pytest", "psutil", "runfiles")

# A flag that always counts: not in a configuration (`build:gpu`).
_FLAG = re.compile(r"^(?:common|build|test)\s.*?--@?\S*//dist_testing/config:(\w+)=", re.MULTILINE)
_REQUIREMENT = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)", re.MULTILINE)
# Lines of a difference that are shown.
_SHOWN = 40


def differences(library: Library, folder: Path, command: str) -> Iterator[str]:
    """Say in what a repository differs from what this version needs. The ways out name the command of this program.

    Raises:
        SetupError: If a file cannot be understood.
    """
    module = read_module_file(folder)
    if module is None and not any((folder / name).exists() for name in ("WORKSPACE", "WORKSPACE.bazel")):
        yield problem(
            f"'{folder}' has no {MODULE_FILE}.",
            "It is not the root of a Bazel repository.",
            f"Name the root (--dir=FOLDER), or make it one: {command}",
        )
        return
    flags = read_flags(folder, ".bazelrc")
    if module is not None:
        yield from _version_of_the_library(library, module, command)
    yield from _packages(module, flags)
    if not re.search(rf"^(?:try-)?import\s+\S*{re.escape(FLAGS_FILE)}$", flags, re.MULTILINE):
        yield problem(
            f".bazelrc does not import {FLAGS_FILE}.",
            "Without it Bazel refuses GPU targets, and --config=gpu, ci and others do not exist.",
            f"Add the line `import %workspace%/{FLAGS_FILE}`: {command}",
        )
    yield from _copy(library, folder, command)
    yield from _version_of_bazel(library, folder)
    if module is not None:
        yield from _lock(library, folder, module)


def _version_of_the_library(library: Library, module: ModuleFile, command: str) -> Iterator[str]:
    mine = module.dependency(MODULE)
    if mine is None:
        yield problem(
            f"{MODULE_FILE} has no bazel_dep on {MODULE}.",
            "The repository does not use the library yet, or gets it in another way.",
            f"Add it: {command}",
        )
        return
    if "repo_name" in mine.arguments:
        yield problem(
            f'{mine.place}: {MODULE} is there with repo_name = "{mine.arguments["repo_name"]}".',
            f"{FLAGS_FILE} names @{MODULE}, so none of its configurations would work.",
            "Remove repo_name from that line.",
        )
    if mine.arguments.get("version", library.version) != library.version:
        yield problem(
            f"{mine.place}: {MODULE} is there in version {mine.arguments['version']}; this is {library.version}.",
            "The line was not changed with the clone or commit, or this program belongs to another clone.",
            f'Write version = "{library.version}" there, or start the program of the version that you use.',
        )


def _packages(module: ModuleFile | None, flags: str) -> Iterator[str]:
    tag = module.tag(f"{MODULE}.packages") if module else None
    named = {*_FLAG.findall(flags), *(tag.arguments if tag else ())}
    missing = [name for name in PACKAGES if name not in named]
    if missing and "hub" not in named:
        yield problem(
            f"{MODULE_FILE if module else '.bazelrc'} does not name {', '.join(missing)} for the library.",
            "It takes these packages from the repository's own hub, and has no default for them.",
            f"Add {MODULE}.packages(hub = ...), or the flags, as docs/consumers.md shows.",
        )


def _copy(library: Library, folder: Path, command: str) -> Iterator[str]:
    path = folder / FLAGS_FILE
    if not path.exists():
        yield problem(f"{FLAGS_FILE} does not exist.", "It was not copied, or it was removed.", f"Write it: {command}")
        return
    text = read_text(path)
    if text == library.flags:
        return
    names = ("this repository", f"{MODULE} {library.version}")
    lines = list(difflib.unified_diff(text.splitlines(), library.flags.splitlines(), *names, n=0, lineterm=""))
    shown = lines[:_SHOWN] + ([f"... {len(lines) - _SHOWN} more lines"] if len(lines) > _SHOWN else [])
    difference = "\n".join(f"    {line}" for line in shown or ["The line ends differ."])
    yield problem(
        f"{FLAGS_FILE} differs from that of {MODULE} {library.version}:\n{difference}",
        "It was copied from another version, or changed by hand.",
        f"Replace it: {command} --update. Flags of your own belong into .bazelrc, below the import.",
    )


def _version_of_bazel(library: Library, folder: Path) -> Iterator[str]:
    path = folder / ".bazelversion"
    wanted = read_text(path).strip() if path.exists() else ""
    # "latest", a fork, a commit: only Bazelisk knows what that is today.
    found = re.match(r"(\d+)(?:\.(\d+))?", wanted)
    version = tuple(int(part) for part in found.groups() if part) if found else ()
    oldest, newest = (tuple(int(part) for part in text.split(".")) for text in library.bazel)
    if version and not (version >= oldest[: len(version)] and version[: len(newest)] <= newest):
        yield problem(
            f".bazelversion asks for Bazel {wanted}.",
            f"{MODULE} {library.version} works with {library.bazel[0]} to {library.bazel[1]}.",
            "Name one of those there.",
        )


def _lock(library: Library, folder: Path, module: ModuleFile) -> Iterator[str]:
    tag = module.tag(f"{MODULE}.packages")
    hub = str(tag.arguments.get("hub", "")).lstrip("@") if tag else ""
    package, separator, file = module.hubs().get(hub, "").lstrip("/").partition(":")
    if not separator:
        return
    lock = Path(package, file)
    if not (folder / lock).is_file():
        yield problem(
            f"{lock}, the lock file of @{hub}, does not exist.",
            "It was not made yet, or it was removed.",
            "Make it: docs/consumers.md has the command.",
        )
    elif lacking := sorted(_names(library.files["requirements.in"]) - _names(read_text(folder / lock))):
        yield problem(
            f"{lock} lacks {', '.join(lacking)}.",
            "The library imports these packages from the hub.",
            "Add them to the file that it is made from, and lock again.",
        )


def _names(requirements: str) -> set[str]:
    """Return the packages that a requirements file names, spelled as hubs spell them."""
    return {re.sub(r"[-_.]+", "_", name).lower() for name in _REQUIREMENT.findall(requirements)}
