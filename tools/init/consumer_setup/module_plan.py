"""What a MODULE.bazel file lacks, and the hub that brings torch."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from consumer_setup.library import MODULE, Library
from consumer_setup.line_files import Flags
from consumer_setup.module_file import NAME, ModuleFile, called, calls, statements
from consumer_setup.problem import Problem, SetupError

# Of the page's MODULE.bazel: what a repository may have under another name or in another version.
PAGE_HUB = "pypi"
PAGE_PYTHON = "3.11"
_PAGE_PATH = "../dist_testing"
LOCK = "requirements.txt"

_PYTHON = ("//python/extensions:python.bzl", "python")
_PIP = ("//python/extensions:pip.bzl", "pip")
_WHEELS = ("//wheels:extensions.bzl", "wheels")
_OWN = ("//dist_testing:extensions.bzl", MODULE)

_FLAG = re.compile(r"(?:.*dist_testing)?//dist_testing/config:(torch|pytest|psutil|runfiles)")
# The library's packages, as the flags and the tag name them.
PACKAGES = ("torch", "pytest", "psutil", "runfiles")
_VERSION = re.compile(r"3\.(\d+)(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class ModulePlan:
    """The next MODULE.bazel, and what follows from it for other files.

    Attributes:
        addition: Lines to add at its end; empty if it lacks nothing.
        hub: Name of the hub in labels; empty if the packages are named, and are of several or targets of another kind.
        is_new_hub: Whether the lines declare it.
        lock: Its lock file, relative to the repository; None if that is not known.
        python: Version of Python, such as "3.11".
    """

    addition: str
    hub: str
    is_new_hub: bool
    lock: str | None
    python: str


def plan_module(
    library: Library, folder: Path, existing: ModuleFile, flags: Flags, *, hub: str, python: str
) -> ModulePlan:
    """Decide what to add.

    Args:
        library: This version.
        folder: The repository.
        existing: Its module file.
        flags: Its flags.
        hub: Wanted hub in labels; empty for the one that is there, else the page's.
        python: Wanted version of Python; empty for that of the toolchain, else the page's.

    Raises:
        SetupError: If a name is taken, or there is no single answer.
    """
    if problems := dependency_problems(library, existing):
        raise SetupError(problems[0].what, problems[0].cause, problems[0].way_out)
    hubs = _hubs(existing)
    named = named_packages(existing, flags)
    wanted = hub or _chosen_hub(hubs, named)
    is_new = bool(wanted) and wanted not in hubs and wanted not in named.values()
    if is_new and wanted in existing.repositories:
        raise SetupError(
            f"{existing.places[wanted]}: the name @{wanted} is taken, and not by a hub of Python packages.",
            "The library takes torch, pytest, psutil and bazel-runfiles from a hub, and the new one needs a name.",
            "Choose another name: --hub=NAME",
        )
    version = python or _toolchain_python(existing, is_needed=is_new)
    if is_new or python:
        _check_python(version, existing)
    groups = {_WHEELS[1]: is_new, MODULE: len(named) < len(PACKAGES)}
    addition = _missing_statements(library, folder, existing, groups, hub=wanted, python=version)
    return ModulePlan(addition, wanted, is_new, LOCK if is_new else hubs.get(wanted), version)


def dependency_problems(library: Library, existing: ModuleFile) -> list[Problem]:
    """Say what is wrong with the lines that bring this library."""
    found = []
    owner, own = existing.repositories.get(MODULE, ("", MODULE))
    if owner or own != MODULE:
        found.append(
            Problem(
                f"{existing.places[MODULE]}: the name @{MODULE} is taken: it is {own}.",
                f"{MODULE}.bazelrc and the pages name this library @{MODULE}.",
                "Give that repository another name (repo_name, or a keyword in use_repo).",
            )
        )
    mine = existing.dependencies.get(MODULE)
    if mine and mine.repository != MODULE:
        found.append(
            Problem(
                f'{mine.place}: {MODULE} is there with repo_name = "{mine.repository}".',
                f"{MODULE}.bazelrc names @{MODULE}, so none of its configurations would work.",
                "Remove repo_name from that line.",
            )
        )
    if mine and mine.version and mine.version != library.version:
        found.append(
            Problem(
                f"{mine.place}: {MODULE} is there in version {mine.version}; this is {library.version}.",
                "The line was not changed with the clone or commit, or this program belongs to another clone.",
                f'Write version = "{library.version}" there, or start the program of the version that you use.',
            )
        )
    return found


def named_packages(existing: ModuleFile, flags: Flags) -> dict[str, str]:
    """Return the packages that the repository names for the library, and the hub of each; empty for another target."""
    labels: dict[str, str] = {}
    for tag in existing.tags_of(*_OWN, "packages"):
        if "hub" in tag.arguments:
            labels.update(dict.fromkeys(PACKAGES, str(tag.arguments["hub"])))
        labels.update({name: str(label) for name, label in tag.arguments.items() if name in PACKAGES})
    labels.update({found[1]: value for flag, value in flags.values.items() if (found := _FLAG.fullmatch(flag))})
    return {
        name: label.lstrip("@").partition("//")[0] if label.startswith("@") else "" for name, label in labels.items()
    }


def _hubs(existing: ModuleFile) -> dict[str, str | None]:
    """Return the hubs that are there: name in labels to the path of the lock file."""
    found: dict[str, str | None] = {}
    for extension, tag, own, file in (
        (_PIP, "parse", "hub_name", "requirements_lock"),
        (_WHEELS, "lock", "hub", "file"),
    ):
        for one in existing.tags_of(*extension, tag):
            hub = one.arguments.get(own)
            if isinstance(hub, str):
                name = existing.name_in_labels(one.variable, hub) or hub
                found.setdefault(name, _path(one.arguments.get(file)))
    return found


def _path(label: object) -> str | None:
    """Return the path of a file of the repository by its label; None for any other."""
    if isinstance(label, str) and (found := re.fullmatch(r"(?:@{0,2}//)?([\w./-]*):([\w./-]+)", label)):
        return "/".join(part for part in found.groups() if part)
    return None


def lock_of(existing: ModuleFile, hub: str) -> str | None:
    """Return the path of the lock file of a hub, relative to the repository; None if it is not known."""
    return _hubs(existing).get(hub)


def _chosen_hub(hubs: Mapping[str, str | None], named: Mapping[str, str]) -> str:
    """Return the hub to use; empty if all packages are named already, and not from one hub."""
    for names in (set(named.values()) - {""}, hubs):
        if len(names) == 1:
            return next(iter(names))
        if len(named) == len(PACKAGES):
            return ""
    if PAGE_HUB in hubs or not hubs:
        return PAGE_HUB
    raise SetupError(
        f"{NAME} has several hubs of Python packages: {', '.join(sorted(hubs))}.",
        "The library takes torch, pytest, psutil and bazel-runfiles from one of them.",
        "Name it: --hub=NAME",
    )


def _toolchain_python(existing: ModuleFile, *, is_needed: bool) -> str:
    """Return the version of Python that the repository uses by default; the page's if it declares none.

    Args:
        existing: Its module file.
        is_needed: Whether several versions without a default are an error.

    Raises:
        SetupError: If they are, and there are.
    """
    toolchains = existing.tags_of(*_PYTHON, "toolchain")
    chosen = [one for one in toolchains if one.arguments.get("is_default") is True]
    if len(toolchains) == 1:
        chosen = toolchains
    tags = [*existing.tags_of(*_PYTHON, "defaults"), *chosen]
    versions = [version for tag in tags if isinstance(version := tag.arguments.get("python_version"), str)]
    if versions:
        return versions[0]
    if toolchains and is_needed:
        raise SetupError(
            f"{toolchains[0].place}: the default version of Python is not clear.",
            "There are several toolchains without is_default, or the version is not a string.",
            "Name the version whose interpreter installs the packages: --python=3.12",
        )
    return PAGE_PYTHON


def _check_python(version: str, existing: ModuleFile) -> None:
    toolchains = existing.tags_of(*_PYTHON, "toolchain")
    versions = [tag.arguments.get("python_version") for tag in toolchains]
    found = _VERSION.fullmatch(version)
    if found is None or int(found[1]) < 11:
        raise SetupError(
            f"Python {version} does not fit.",
            "The library needs 3.11 or newer.",
            "Name another version: --python=3.12",
        )
    if versions and None not in versions and version not in versions:
        raise SetupError(
            f"--python={version}: {NAME} has no such toolchain; it has {', '.join(map(str, versions))}.",
            "The packages are installed with an interpreter that rules_python's toolchain brings.",
            f'Add python.toolchain(python_version = "{version}"), or name one of those.',
        )


def _missing_statements(
    library: Library, folder: Path, existing: ModuleFile, groups: Mapping[str, bool], *, hub: str, python: str
) -> str:
    """Return the lines of the page that the file lacks, in its names.

    Args:
        library: This version.
        folder: The repository.
        existing: Its module file.
        groups: Extension of this library to whether its lines are needed.
        hub: Name of the hub in labels.
        python: Version of Python.

    Raises:
        SetupError: If a variable of the new lines is taken.
    """
    renamed: dict[str, str] = {}
    missing = []
    for statement, text in statements(library.files[NAME]):
        call = next(calls(statement))
        arguments = {one.arg: one.value.value for one in call.keywords if isinstance(one.value, ast.Constant)}
        name = called(call)
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            variable = statement.targets[0].id
            label, extension = (ast.literal_eval(one) for one in call.args)
            # A hub needs a toolchain.
            is_needed = groups[MODULE if extension == MODULE else _WHEELS[1]]
            renamed[variable] = (
                existing.variable_of("//" + label.partition("//")[2], extension) if is_needed else variable
            )
            is_there = bool(renamed[variable])
            if not is_there and variable in existing.variables:
                raise SetupError(
                    f"{existing.variables[variable]}: the variable `{variable}` is taken.",
                    f"The new lines would assign it again: {variable} = use_extension({label!r}, ...)",
                    "Rename it there.",
                )
            renamed[variable] = renamed[variable] or variable
        elif name == "bazel_dep":
            is_there = arguments["name"] in existing.dependencies
        elif name.endswith("_override"):
            is_there = MODULE in existing.dependencies or MODULE in existing.overridden
        elif name == f"{MODULE}.packages":
            is_there = not groups[MODULE]
        elif not groups[_WHEELS[1]]:
            is_there = True
        elif name == "python.toolchain":
            is_there = bool(existing.tags_of(*_PYTHON, "toolchain"))
        elif name == "use_repo" and isinstance(call.args[0], ast.Name):
            repository = str(ast.literal_eval(call.args[1])).replace(_underscored(PAGE_PYTHON), _underscored(python))
            is_there = bool(existing.name_in_labels(renamed[call.args[0].id], repository))
        else:
            is_there = False
        if not is_there:
            missing.append(text)
    return _in_names_of(existing, "".join(missing), library, folder, renamed, hub=hub, python=python)


def _underscored(version: str) -> str:
    return version.replace(".", "_")


def _in_names_of(
    existing: ModuleFile,
    text: str,
    library: Library,
    folder: Path,
    renamed: Mapping[str, str],
    *,
    hub: str,
    python: str,
) -> str:
    """Return lines of the page with the names that the repository has."""
    for variable, name in renamed.items():
        text = re.sub(rf"(?m)^{variable}(?=\.| =)|(?<=use_repo\(){variable}(?=,)", name, text)
    rules = existing.dependencies.get("rules_python")
    if rules:
        text = text.replace("@rules_python//", f"@{rules.repository}//")
    text = text.replace(_underscored(PAGE_PYTHON), _underscored(python)).replace(f'"{PAGE_PYTHON}"', f'"{python}"')
    if hub:
        text = text.replace(f'"{PAGE_HUB}"', f'"{hub}"')
        text = re.sub(rf"@{PAGE_HUB}(?=//|\")", f"@{hub}", text)
    relative = os.path.relpath(library.clone, folder.resolve())
    # A neighbour stays a neighbour on another machine; any other place is best named as it is.
    place = relative if not relative.startswith("../..") else str(library.clone)
    return text.replace(f'"{_PAGE_PATH}"', f'"{place}"')
