"""What to write into a repository."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from consumer_setup.library import FLAGS_FILE, Library
from consumer_setup.line_files import NAME as RC_FILE
from consumer_setup.line_files import Flags, missing_lines, packages, read_flags
from consumer_setup.module_file import NAME as MODULE_FILE
from consumer_setup.module_file import ModuleFile, read_module_file, read_text
from consumer_setup.module_plan import LOCK, PAGE_HUB, PAGE_PYTHON, ModulePlan, plan_module
from consumer_setup.problem import SetupError
from consumer_setup.write import Change

IGNORE_FILE = ".gitignore"
ROOT_PACKAGE = "BUILD.bazel"
REQUIREMENTS = "requirements.in"
WORKSPACE_FILES = ("WORKSPACE", "WORKSPACE.bazel")


@dataclass(slots=True)
class Plan:
    """What to do.

    Attributes:
        changes: Files to write.
        left: Files that stay, with the reason.
        next_steps: Commands and edits that remain for the user.
        lock_command: The command that makes the lock file; empty if there is one, or it is not ours to make.
    """

    changes: list[Change] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    next_steps: list[str] = field(default_factory=list)
    lock_command: list[str] = field(default_factory=list)


def plan_setup(library: Library, folder: Path, *, hub: str = "", python: str = "", update: bool = False) -> Plan:
    """Decide what to write.

    Args:
        library: This version.
        folder: The repository; it need not exist.
        hub: Wanted hub; empty for the one that is there, else the page's.
        python: Wanted version of Python; empty for that of the repository, else the page's.
        update: Whether a dist_testing.bazelrc with other contents is replaced.

    Raises:
        SetupError: If the repository does not fit, or a name is taken.
    """
    _check_folder(library, folder)
    found = read_module_file(folder)
    flags = read_flags(folder)
    existing = found or ModuleFile()
    module = plan_module(library, folder, existing, flags, hub=hub, python=python)
    plan = Plan()
    _add_lines(plan, folder, MODULE_FILE, module.addition)
    _plan_flags(plan, library, folder, flags, update=update)
    if found is None or (folder / IGNORE_FILE).exists():
        _plan_ignored(plan, library, folder)
    if module.is_new_hub:
        _plan_requirements(plan, library, folder)
    elif module.hub:
        plan.left.append(f"{MODULE_FILE}: it has a hub of packages, @{module.hub}, which the tests use")
    if module.lock and (folder / module.lock).exists():
        plan.left.append(f"{module.lock}: it is the lock file of @{module.hub}")
    elif module.lock == LOCK:
        command = next(line for line in library.commands if line.startswith("uv "))
        plan.lock_command = shlex.split(command.replace(PAGE_PYTHON, module.python))
    _plan_first_test(plan, library, folder, module)
    _plan_next_steps(plan, library, folder, module)
    return plan


def _check_folder(library: Library, folder: Path) -> None:
    if folder.resolve() in (library.clone.resolve(), library.root.resolve()):
        raise SetupError(
            f"'{folder}' is dist_testing itself.",
            "This command adds dist_testing to another repository.",
            "Name that repository: --dir=FOLDER",
        )
    if folder.exists() and not folder.is_dir():
        raise SetupError(f"'{folder}' is not a folder.", "A file has its name.", "Name another: --dir=FOLDER")
    old = next((name for name in WORKSPACE_FILES if (folder / name).exists()), None)
    if old and not (folder / MODULE_FILE).exists():
        raise SetupError(
            f"'{folder}' has {old} and no {MODULE_FILE}.",
            "It is a repository without modules, and this command writes only module files.",
            "Follow docs/consumers.md, 'How do I start without modules?'; or, to move to modules, make an empty "
            f"{MODULE_FILE} first.",
        )


def _place(folder: Path, name: str) -> Path:
    """Return the path to write; a link within the repository is followed.

    Raises:
        SetupError: If the link leads out of it.
    """
    path = folder / name
    real = path.resolve()
    if not path.is_symlink() or real.is_relative_to(folder.resolve()):
        return real
    raise SetupError(
        f"'{path}' is a link to '{real}'.",
        "The file belongs to another folder, and other repositories may read it.",
        f"Replace the link by a file of its own (.bazelrc may say `import {real}`), or add the lines of "
        "docs/consumers.md there by hand.",
    )


def _add_lines(plan: Plan, folder: Path, name: str, lines: str) -> None:
    """Plan a new file, or lines at the end of one that is there."""
    if not (folder / name).exists() and not (folder / name).is_symlink():
        if lines:
            plan.changes.append(Change(folder / name, lines, name, "wrote"))
        return
    if not lines:
        plan.left.append(f"{name}: it has all that is needed")
        return
    path = _place(folder, name)
    text = read_text(path)
    end = "\r\n" if "\r\n" in text else "\n"
    added = lines.strip("\n").replace("\n", end) + end
    between = "" if not text else end if text.endswith("\n") else 2 * end
    count = sum(1 for line in lines.splitlines() if line and not line.startswith("#"))
    plan.changes.append(Change(path, text + between + added, f"{name} ({count} lines)", "added to"))


def _plan_flags(plan: Plan, library: Library, folder: Path, flags: Flags, *, update: bool) -> None:
    _add_lines(plan, folder, RC_FILE, missing_lines(library.files[RC_FILE], lambda _: FLAGS_FILE not in flags.imports))
    path = folder / FLAGS_FILE
    if not path.exists():
        plan.changes.append(Change(path, library.flags, FLAGS_FILE, "wrote"))
    elif read_text(path) == library.flags:
        plan.left.append(f"{FLAGS_FILE}: it is that of {library.version}")
    elif update:
        plan.changes.append(Change(path, library.flags, FLAGS_FILE, "replaced"))
    else:
        how = "--check shows how, --update replaces it"
        plan.left.append(f"{FLAGS_FILE}: it differs from that of {library.version}; {how}")


def _plan_ignored(plan: Plan, library: Library, folder: Path) -> None:
    path = folder / IGNORE_FILE
    there = {line.strip().strip("/") for line in read_text(path).splitlines()} if path.exists() else set()
    lines = missing_lines(library.files[IGNORE_FILE], lambda line: line.strip("/") not in there)
    _add_lines(plan, folder, IGNORE_FILE, lines)


def _plan_requirements(plan: Plan, library: Library, folder: Path) -> None:
    """Plan the package of the lock file, and the list that it is made from."""
    if not any((folder / name).exists() for name in ("BUILD", ROOT_PACKAGE)):
        plan.changes.append(Change(folder / ROOT_PACKAGE, library.files[ROOT_PACKAGE], ROOT_PACKAGE, "wrote"))
    else:
        plan.left.append(f"{ROOT_PACKAGE}: the root is a package already")
    if (folder / LOCK).exists():
        return
    if not (folder / REQUIREMENTS).exists():
        plan.changes.append(Change(folder / REQUIREMENTS, library.files[REQUIREMENTS], REQUIREMENTS, "wrote"))
        return
    plan.left.append(f"{REQUIREMENTS}: it is there")
    if lacking := sorted(packages(library.files[REQUIREMENTS]) - packages(read_text(folder / REQUIREMENTS))):
        plan.next_steps.append(f"add to {REQUIREMENTS}: {', '.join(lacking)}")


def _plan_first_test(plan: Plan, library: Library, folder: Path, module: ModulePlan) -> None:
    """Plan the page's first test, if its package does not exist."""
    files = {name: text for name, text in library.files.items() if "/" in name}
    package = next(iter(files)).partition("/")[0]
    if (folder / package).exists():
        plan.left.append(f"{package}/: it exists, so no first test is written")
        return
    for name, text in files.items():
        # With an own list of packages there is no hub for the label in `deps`; the library brings torch itself.
        text = text.replace(f"@{PAGE_HUB}//", f"@{module.hub}//") if module.hub else _without_deps(text)
        plan.changes.append(Change(folder / name, text, name, "wrote"))


def _without_deps(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.strip().startswith("deps = "))


def _plan_next_steps(plan: Plan, library: Library, folder: Path, module: ModulePlan) -> None:
    lock = folder / module.lock if module.lock else None
    if lock and lock.is_file():
        lacking = sorted(packages(library.files[REQUIREMENTS]) - packages(read_text(lock)))
        if lacking:
            plan.next_steps.append(
                f"{module.lock} lacks {', '.join(lacking)}: add them to the file that it is made from, and lock again"
            )
    if plan.lock_command:
        plan.next_steps.append(shlex.join(plan.lock_command))
    if any(change.path.name.startswith("test_") for change in plan.changes):
        plan.next_steps.append(library.commands[-1])
