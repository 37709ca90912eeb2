"""Builds the three archives from the commit HEAD, and says what is wrong in them."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
import zipfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from release_steps.commands import ReleaseError, output_of, run

NAME = "dist_testing"
# Files of the package that only Bazel and readers of the sources use.
_ONLY_SOURCES = (".bzl", "BUILD.bazel", "README.md")
_METADATA = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt")
_IN_SDIST = ("LICENSE", "PKG-INFO", "README.md", "pyproject.toml", f"{NAME}/__init__.py")
# What a person has to fill in before an upload: the word stands for the owner's account, name or address.
_PLACEHOLDER = re.compile(r"\bOWNER\b")
_WITH_PLACEHOLDERS = ("pyproject.toml", "SECURITY.md", ".bcr/metadata.template.json")


@dataclass(frozen=True, slots=True)
class Archives:
    """The files of a release."""

    version: str  # its version
    sdist: Path  # the sources for pip
    wheel: Path  # the wheel
    bazel: Path  # the sources for Bazel, with tests and tools


def build(root: Path, output: Path, scratch: Path, python: Path) -> Archives:
    """Build the archives of the commit HEAD, by a Python with the packages of requirements_release.txt.

    Raises:
        ReleaseError: If a command fails.
    """
    text = output_of(["git", "show", f"HEAD:{NAME}/__init__.py"], root)
    version = re.findall(r'^__version__ = "([\w.]+)"$', text, re.MULTILINE)[0]
    output.mkdir(parents=True, exist_ok=True)
    # As .bcr/source.template.json names it.
    bazel = output / f"{NAME}-v{version}.tar.gz"
    prefix = f"{NAME}-{version}"
    output_of(["git", "archive", "--format=tar.gz", f"--prefix={prefix}/", f"--output={bazel}", "HEAD"], root)
    shutil.unpack_archive(bazel, scratch, filter="data")
    output_of([python, "-m", "build", "--no-isolation", f"--outdir={output}", scratch / prefix], scratch)
    return Archives(version, output / f"{prefix}.tar.gz", output / f"{prefix}-py3-none-any.whl", bazel)


def archive_problems(archives: Archives, root: Path, python: Path) -> list[str]:
    """Say what is wrong in the archives; an empty list if nothing is."""
    tracked = output_of(["git", "ls-tree", "-r", "--name-only", "HEAD"], root).splitlines()
    found = wheel_problems(archives.wheel, tracked, archives.version)
    found += sdist_problems(archives.sdist)
    found += registry_problems(archives, (root / ".bcr" / "source.template.json").read_text(encoding="utf-8"))
    code, printed = run([python, "-m", "twine", "check", "--strict", archives.sdist, archives.wheel], root)
    return found + ([f"twine check ended with {code}:\n{printed}"] if code else [])


def wheel_problems(wheel: Path, tracked: Collection[str], version: str) -> list[str]:
    """Compare the files of a wheel with those of the package: no test and no tool of this repository is one."""
    wanted = {name for name in tracked if name.startswith(f"{NAME}/") and not name.endswith(_ONLY_SOURCES)}
    wanted |= {f"{NAME}-{version}.dist-info/{name}" for name in _METADATA}
    return _differences(wheel, set(zipfile.ZipFile(wheel).namelist()), wanted)


def sdist_problems(sdist: Path) -> list[str]:
    """Say which file the sources for pip lack, and which of them are no part of the package."""
    with tarfile.open(sdist) as tar:
        names = {member.name.partition("/")[2] for member in tar if member.isfile()}
    others = {name for name in names if name.startswith((".", "docs/", "e2e/", "tests/", "tools/"))}
    return _differences(sdist, names & {*_IN_SDIST, *others}, set(_IN_SDIST))


def _differences(archive: Path, has: set[str], wanted: set[str]) -> list[str]:
    lacks, more = sorted(wanted - has), sorted(has - wanted)
    return [
        f"{archive.name} {what} {', '.join(names)}"
        for what, names in (("lacks", lacks), ("has, and should not:", more))
        if names
    ]


def registry_problems(archives: Archives, template: str) -> list[str]:
    """Say where the template of Bazel's registry does not fit the archive for Bazel."""
    with tarfile.open(archives.bazel) as tar:
        folder = tar.getnames()[0].partition("/")[0]
    source = json.loads(template.replace("{REPO}", NAME).replace("{VERSION}", archives.version))
    return [
        f".bcr/source.template.json has {wanted!r}; the archive has {found!r}"
        for wanted, found in ((source["strip_prefix"], folder), (source["url"].rpartition("/")[2], archives.bazel.name))
        if wanted != found
    ]


def placeholders(root: Path, files: Sequence[str] = _WITH_PLACEHOLDERS) -> list[str]:
    """Return the lines that a person has to fill in before an upload, each with its file."""
    found = []
    for name in files:
        try:
            lines = (root / name).read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise ReleaseError(
                f"{name} cannot be read: {error.strerror}.\nA release has this file.\nRestore it."
            ) from error
        found += [f"{name}:{at}: {line.strip()}" for at, line in enumerate(lines, 1) if _PLACEHOLDER.search(line)]
    return found
