"""Writes what a repository lacks. Lines that are there stay as they are."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

from consumer_setup.library import FLAGS_FILE, MODULE, Library, SetupError, read_flags, read_text
from consumer_setup.module_file import NAME as MODULE_FILE
from consumer_setup.module_file import ModuleFile, read_module_file, statements

# The page's hub, and its place of the library.
_PAGE_HUB = "pypi"
_PAGE_PATH = "../dist_testing"
# Files of which the missing lines are added.
_LINE_FILES = (".bazelrc", ".gitignore")
# Without these no lock file has to be made.
_FILES_OF_A_HUB = ("BUILD.bazel", "requirements.in")


def set_up(library: Library, folder: Path, *, update: bool) -> Iterator[str]:
    """Write the files of docs/consumers.md that a repository lacks, and yield what was done and what remains.

    The folder need not exist. With `update`, a dist_testing.bazelrc with other contents is replaced.

    Raises:
        SetupError: If the repository does not fit. Nothing was written.
    """
    module = read_module_file(folder) or ModuleFile()
    hub = next(iter(module.hubs()), None)
    texts = _texts(library, folder, module, hub)
    folder.mkdir(parents=True, exist_ok=True)
    is_new_test = not any((folder / name).parent.exists() for name in texts if "/" in name)
    for name, text in texts.items():
        path = folder / name
        before = read_text(path) if path.exists() else ""
        if name == FLAGS_FILE and path.exists():
            if before == text:
                yield f"left {name}: it is that of {library.version}"
            elif update:
                # Not through a link, which may lead to another clone.
                path.unlink()
                path.write_text(text, encoding="utf-8")
                yield f"replaced {name}"
            else:
                yield f"left {name}: it differs from that of {library.version}; --check shows how, --update replaces it"
        elif name in (MODULE_FILE, *_LINE_FILES) and path.exists():
            if text:
                path.write_text(f"{before.rstrip()}\n\n{text}".lstrip(), encoding="utf-8")
            yield f"added to {name}" if text else f"left {name}: it has all that is needed"
        # Bazel does not read a BUILD beside a BUILD.bazel.
        elif (
            path.exists()
            or (name == "BUILD.bazel" and (folder / "BUILD").is_file())
            or ("/" in name and not is_new_test)
        ):
            yield f"left {name}: it or its folder exists"
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            yield f"wrote {name}"
    if hub is None and not (folder / "requirements.txt").exists():
        yield f"next: {library.commands[0]}"
    if is_new_test:
        yield f"next: {library.commands[-1]}"


def _texts(library: Library, folder: Path, module: ModuleFile, hub: str | None) -> dict[str, str]:
    """Return the text of each file; of a file that exists, what it lacks."""
    texts = {FLAGS_FILE: library.flags}
    for name, text in library.files.items():
        real = (folder / name).resolve()
        if not real.is_relative_to(folder.resolve()):
            raise SetupError(
                f"'{folder / name}' is a link to '{real}'.",
                "The file belongs to another folder, and other repositories may read it.",
                "Replace the link by a file of its own (.bazelrc may import the other one), or add the lines by hand.",
            )
        if hub is not None and name in _FILES_OF_A_HUB:
            continue
        if name == MODULE_FILE:
            text = _missing_statements(text, library, folder, module, hub)
        elif name in _LINE_FILES and (folder / name).exists():
            # A `try-import` imports, too.
            there = {line.strip().removeprefix("try-") for line in read_flags(folder, name).splitlines()}
            lines = text.splitlines(keepends=True)
            is_complete = all(line.startswith("#") or line.strip() in there for line in lines)
            text = "" if is_complete else "".join(line for line in lines if line.strip() not in there)
        texts[name] = text.replace(f"@{_PAGE_HUB}//", f"@{hub or _PAGE_HUB}//")
    return texts


def _missing_statements(text: str, library: Library, folder: Path, module: ModuleFile, hub: str | None) -> str:
    """Return the page's statements that a MODULE.bazel file lacks, with the names that it has."""
    if hub is None and (toolchain := module.tag("python.toolchain")) is not None:
        raise SetupError(
            f"{toolchain.place}: there is a Python toolchain, and no hub of packages for it.",
            "The new lines would declare a second toolchain, and rules_python refuses two defaults.",
            "Add a hub for your Python, as docs/consumers.md shows, and run this command again.",
        )
    missing = ""
    for node, statement in statements(text):
        source = ast.unparse(node)
        is_of_hub = source.startswith(("python", "wheels", "use_repo("))
        if source.startswith("bazel_dep("):
            is_there = any(source.startswith(f"bazel_dep(name='{one.arguments.get('name')}'") for one in module.calls)
        elif source.startswith("local_path_override("):
            is_there = module.dependency(MODULE) is not None
        else:
            is_there = hub is not None if is_of_hub else module.tag(f"{MODULE}.packages") is not None
        if is_there:
            continue
        if isinstance(node, ast.Assign) and (name := ast.unparse(node.targets[0])) in module.variables:
            raise SetupError(
                f"{MODULE_FILE}: the variable `{name}` is taken.",
                f"The new lines would assign it again: {source}",
                "Rename it there, or add the lines of docs/consumers.md by hand.",
            )
        missing += statement
    relative = os.path.relpath(library.clone, folder.resolve())
    # A neighbour stays a neighbour on another machine; any other place is best named as it is.
    place = relative if not relative.startswith("../..") else str(library.clone)
    missing = missing.replace(f'"{_PAGE_PATH}"', f'"{place}"').lstrip("\n")
    return missing.replace(f'hub = "@{_PAGE_HUB}"', f'hub = "@{hub or _PAGE_HUB}"')
