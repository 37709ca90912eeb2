"""Check the library on released rules_python: `python3 -m e2e.released FOLDER ... [--module NAME=FOLDER ...]`.

Each FOLDER is the source tree of one release of rules_python, such as an unpacked archive. `--module` names source
trees of the modules that this release needs, if Bazel cannot download them. For each release the program copies this
repository, lets it and its consumers (e2e/) use that rules_python, and runs checks of `e2e.check` and then
`bazel test //...`. The last lines are a table: release, check, result.

The interpreter is that of this machine, packed in the form that rules_python downloads, so that a machine without a
network can run everything. A Bazel that does not tell its version to rules (Debian's) gets copies of the trees in which
the version is written down.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.support.nested_bazel import ROOT, NestedBazel, nested_bazel, scratch_folder

# Consumers of e2e.check, and one check that is none: all tests of this repository.
CONSUMERS = ("everyday", "bzlmod", "wheels", "mine")
EVERYTHING = "//..."

# Seconds for all tests of this repository.
EVERYTHING_LIMIT_S = 3600

# What this program appends to the module file of this repository and of each consumer.
_INTERPRETER = """
released_python = use_extension("@rules_python//python/extensions:python.bzl", "python", dev_dependency = True)
released_python.override(
    available_python_versions = ["{version}"],
    minor_mapping = {{"{minor}": "{version}"}},
)
released_python.single_version_platform_override(
    platform = "{platform}",
    python_version = "{version}",
    sha256 = "{sha256}",
    strip_prefix = "python",
    urls = ["{url}"],
)
"""
# The consumers have it in their module files: without it, releases before 1.3 refuse to give root an interpreter.
_FOR_ROOT = """
released_python.toolchain(ignore_root_user_error = True, is_default = True, python_version = "{minor}")
"""
_UNKNOWN_MODULES = re.compile(r"overrides on nonexistent module\(s\): (.+?)(?:\. Type .*)?$", re.MULTILINE)
# Not needed to run Python, and large.
_LEFT_OUT = re.compile(r"(^|/)(test|tests|__pycache__|config-[^/]+)(/|$)|\.a$|/site-packages/(?!pip)")


def pack_interpreter(folder: Path) -> Path:
    """Pack the interpreter that runs this program as rules_python's downloads are packed.

    Args:
        folder: The archive is written there.

    Returns:
        The archive. Its files are below `python/`.
    """

    def keep(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if _LEFT_OUT.search(entry.name) else entry

    # Some releases read the date of a download from its folder.
    archive = folder / "20240101" / "python.tar.gz"
    archive.parent.mkdir()
    base = Path(sys.base_prefix)
    minor = f"python{sysconfig.get_python_version()}"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        for name in ("python", "python3", minor):
            tar.add(base / "bin" / minor, f"python/bin/{name}")
        for part in ("include", f"lib/{minor}"):
            tar.add(base / part, f"python/{part}", filter=keep)
        for library in sorted((base / "lib").glob("libpython*")):
            tar.add(library, f"python/lib/{library.name}", filter=keep)
    return archive


def interpreter_text(archive: Path) -> str:
    """Return the lines of a module file by which rules_python takes the packed interpreter."""
    return _INTERPRETER.format(
        minor=sysconfig.get_python_version(),
        platform=f"{os.uname().machine}-unknown-linux-gnu",
        sha256=hashlib.sha256(archive.read_bytes()).hexdigest(),
        url=archive.as_uri(),
        version=".".join(str(number) for number in sys.version_info[:3]),
    )


def copy_repository(folder: Path, interpreter: str) -> None:
    """Copy this repository, with the interpreter in its module file and in those of the consumers.

    Args:
        folder: A folder that does not exist.
        interpreter: Lines of a module file.
    """
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        source = ROOT / name
        if source.is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / name, follow_symlinks=False)
    for module in (folder / "MODULE.bazel", *(folder / "e2e").glob("*/MODULE.bazel")):
        with module.open("a", encoding="utf-8") as file:
            file.write(interpreter)
    with (folder / "MODULE.bazel").open("a", encoding="utf-8") as file:
        file.write(_FOR_ROOT.format(minor=sysconfig.get_python_version()))


def with_version(trees: Mapping[str, Path], folder: Path, bazel: NestedBazel) -> dict[str, Path]:
    """Return the source trees for this Bazel: copies with its version, if it does not tell it to rules."""
    if bazel.run("info", "release").stdout.startswith("release "):
        return dict(trees)
    version = subprocess.run([bazel.bazel, "--version"], capture_output=True, check=True, text=True).stdout.split()[1]
    copies = {}
    for name, tree in trees.items():
        copies[name] = folder / name
        # The other folders of a tree hold examples and tests with module files of their own.
        shutil.copytree(tree, copies[name], symlinks=True, ignore=shutil.ignore_patterns(".git"))
        for file in copies[name].rglob("*.bzl"):
            text = file.read_text(encoding="utf-8")
            if "native.bazel_version" in text:
                file.write_text(text.replace("native.bazel_version", f'"{version}"'), encoding="utf-8")
    return copies


def write_overrides(file: Path, trees: Mapping[str, Path], bazel: NestedBazel) -> None:
    """Write a file of options by which Bazel takes modules from source trees, those that this rules_python needs."""
    needed = dict(trees)
    while True:
        lines = [f"common --override_module={name}={tree}\n" for name, tree in needed.items()]
        file.write_text("".join(lines), encoding="utf-8")
        done = bazel.run("mod", "dump_repo_mapping", "")
        unknown = _UNKNOWN_MODULES.search(done.output)
        left_out = [name for name in unknown[1].split(", ") if name in needed] if unknown else []
        if not left_out:
            break
        for name in left_out:
            del needed[name]
    if done.status:
        raise SystemExit(f"e2e.released: Bazel finds no module graph\n{done.output[-4000:]}")


def release_of(tree: Path) -> str:
    """Return the newest release that a source tree of rules_python has notes of; the folder's name if it has none."""
    changes = tree / "CHANGELOG.md"
    text = changes.read_text(encoding="utf-8") if changes.exists() else ""
    found = re.search(r"^## \[(\d+\.\d+\.\d+)", text, re.MULTILINE)
    return found[1] if found else tree.name


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a check.

    Attributes:
        check: Its name.
        passed: Whether everything was as expected.
        text: For a person.
    """

    check: str
    passed: bool
    text: str


@dataclass(frozen=True, slots=True)
class Release:
    """One release of rules_python in a folder of its own.

    Attributes:
        folder: For the copy of the repository, Bazel's outputs and the logs.
        trees: Name of a module -> its source tree; rules_python is one of them.
        bazel: The program; empty for bazelw.
    """

    folder: Path
    trees: Mapping[str, Path]
    bazel: str

    @property
    def _repository(self) -> Path:
        return self.folder / "repository"

    @property
    def _options(self) -> Path:
        return self.folder / "overrides.bazelrc"

    @property
    def _output(self) -> Path:
        return self.folder / "output"

    def prepare(self, flags: list[str]) -> None:
        """Copy the repository, and write the options of Bazel: the modules, and more flags."""
        copy_repository(self._repository, interpreter_text(pack_interpreter(self.folder)))
        self._options.touch()
        with nested_bazel(self._repository, self._output, bazel=self.bazel, startup=self._startup) as nested:
            write_overrides(self._options, with_version(self.trees, self.folder / "modules", nested), nested)
        with self._options.open("a", encoding="utf-8") as file:
            file.writelines(f"common {flag}\n" for flag in flags)

    @property
    def _startup(self) -> tuple[str, ...]:
        return (f"--bazelrc={self._options}",)

    def check(self, name: str) -> Result:
        """Run one check, with its output in a log of its name."""
        start = time.monotonic()
        log = self.folder / f"{name.strip('/.') or 'everything'}.log"
        if name == EVERYTHING:
            with nested_bazel(self._repository, self._output, bazel=self.bazel, startup=self._startup) as nested:
                # More tests at once than CPUs, as in CI: many of them wait for a limit to pass.
                at_once = ("--jobs=HOST_CPUS*1.5", "--local_resources=cpu=HOST_CPUS*3")
                arguments = ("--keep_going", "--test_output=errors", *at_once, EVERYTHING)
                done = nested.run("test", *arguments, limit_s=EVERYTHING_LIMIT_S)
            log.write_text(done.output, encoding="utf-8")
            passed, text = done.status == 0, "".join(re.findall(r"^Executed .*", done.output, re.MULTILINE)[-1:])
            if text and not passed:
                text += f" Bazel ended with {done.status}."
        else:
            command = [sys.executable, "-m", "e2e.check", name, f"--bazelrc={self._options}", f"--bazel={self.bazel}"]
            with log.open("w", encoding="utf-8") as out:
                command.append(f"--output={self._output}")
                passed = not subprocess.run(
                    command, cwd=self._repository, stdout=out, stderr=out, check=False
                ).returncode
            text = "as expected" if passed else "WRONG"
        seconds = time.monotonic() - start
        return Result(name, passed, f"{text or 'no test ran'} ({seconds:.0f} s{'' if passed else f', see {log}'})")


def main() -> int:
    """Run the checks on each release."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "trees", nargs="+", type=Path, metavar="FOLDER", help="source tree of a release of rules_python"
    )
    parser.add_argument("--module", action="append", default=[], metavar="NAME=FOLDER", help="source tree of a module")
    parser.add_argument("--flag", action="append", default=[], metavar="FLAG", help="option of Bazel for every check")
    names = f"of {', '.join(CONSUMERS)}, {EVERYTHING}; default: all"
    parser.add_argument("--check", action="append", metavar="NAME", help=names)
    parser.add_argument("--bazel", default="", help="default: ./bazelw")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="keep everything here; it must not exist")
    options = parser.parse_args()
    modules = {name: Path(tree).absolute() for name, _, tree in (text.partition("=") for text in options.module)}
    for tree in (*options.trees, *modules.values()):
        if not (tree / "MODULE.bazel").exists():
            parser.error(f"{tree} has no MODULE.bazel; expected the source tree of a module")
    rows, all_passed = [], True
    with ExitStack() as stack:
        output = options.output.absolute() if options.output else stack.enter_context(scratch_folder("released"))
        for tree in options.trees:
            name = release_of(tree)
            release = Release(output / name, {"rules_python": tree.absolute(), **modules}, options.bazel)
            release.folder.mkdir(parents=True)
            release.prepare(options.flag)
            for check in options.check or [*CONSUMERS, EVERYTHING]:
                result = release.check(check)
                sys.stderr.write(f"e2e.released: {name}: {check}: {result.text}\n")
                rows.append(f"| {name} | {check} | {result.text} |")
                all_passed &= result.passed
    print("| rules_python | check | result |", "|---|---|---|", *rows, sep="\n")
    return 0 if all_passed else 1


if __name__ == "__main__":
    sys.exit(main())
