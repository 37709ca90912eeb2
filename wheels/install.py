"""Install the wheels of a lock file into one folder, and compile them. A repository rule runs this program.

    python3 -I install.py --lock requirements.txt --name //:requirements.txt [--extra-index-url URL ...] FOLDER

FOLDER gets `site-packages` with all wheels and their bytecode, and `<package>/dist_info` with the metadata of each.
pip's own configuration decides where the wheels come from; only wheels with the locked hashes are accepted.

It runs on the interpreter that the wheels are for, so it imports only the standard library. If the wheels cannot be
installed, the reason is on stderr, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from email.parser import HeaderParser
from pathlib import Path

SITE = "site-packages"

# pip's message for a requirement that no index has, or has only for other Pythons.
_NOT_FOUND = "No matching distribution found"
# pip's message for an index that does not answer.
_UNREACHABLE = "Retrying ("
_NO_SPACE = "No space left on device"

# Settings of the user for another installation, which must not change this one.
_OTHERS_SETTINGS = ("PIP_PREFIX", "PIP_ROOT", "PIP_TARGET", "PIP_USER", "PYTHONHOME", "PYTHONPATH")

# Characters of pip's output that an error shows.
_SHOWN = 4000

# Starts pip, which is named as for an interpreter: `-m pip` or a file. It writes its interpreter into the programs of
# packages, and here that may be a path of one machine. Tests with the same wheels must have the same inputs everywhere.
_SAME_PROGRAMS = """
import runpy, sys
sys.executable = "/usr/bin/env python{}.{}".format(*sys.version_info)
del sys.argv[0]
if sys.argv[0] == "-m":
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
"""

_REMAKE = "remake it (uv pip compile --generate-hashes, or pip-compile --generate-hashes)"


class InstallError(Exception):
    """The wheels of a lock file cannot be installed; the text has the reason and the way out."""


def _pip() -> list[str]:
    """Return the command of this interpreter's pip: an installed one, else the one that ensurepip brings."""
    # In a virtual environment pip may be that of the installation below.
    for python in dict.fromkeys((sys.executable, getattr(sys, "_base_executable", sys.executable))):
        command = [python, "-m", "pip"]
        if _run([*command, "--version"], _environment())[0] == 0:
            return command
    try:
        import ensurepip
    except ImportError:
        bundled = []
    else:
        bundled = sorted(Path(ensurepip.__file__).parent.glob("_bundled/pip-*.whl"))
    if bundled:
        # A wheel is an archive that Python can run.
        return [sys.executable, str(bundled[-1] / "pip")]
    raise InstallError(
        f"{sys.executable}: this interpreter has no pip.\n"
        "The wheels are installed with the interpreter that imports them.\n"
        f"Install it (Debian and Ubuntu: apt-get install python3-pip; elsewhere: {sys.executable} -m ensurepip), or "
        "name another interpreter in MODULE.bazel (docs/wheels.md)."
    )


def _environment(temporary: Path | None = None) -> Mapping[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in _OTHERS_SETTINGS}
    if temporary is not None:
        environment["TMPDIR"] = str(temporary)
    return environment


_PYTHON = "{}.{}".format(*sys.version_info)
# Pattern of pip's output -> the likely cause and the way out. The first that fits counts.
_EXPLAINED = {
    "DO NOT MATCH THE HASHES": (
        "A wheel is not the file that was locked: another build, a rebuilt mirror, or a tampered file.\n"
        f"If the index is trusted, and the lock file is old or of another index: {_REMAKE}."
    ),
    _NO_SPACE: (
        "The disk of Bazel's output base is full, or a quota of this user is.\n"
        "The CPU wheels of torch take 1 GB, the CUDA ones 5 GB. Free some space, or move the output base to "
        "another disk with --output_user_root."
    ),
    "Hashes are required": (
        f"A requirement has no hash, so any file of that name would be accepted.\nLock it again: {_REMAKE}."
    ),
    "conflicting dependencies|Double requirement given": (
        "The lock file has a package twice, and both are for this Python and this platform.\n"
        f"Keep one of them, or {_REMAKE}."
    ),
    "is not a supported wheel on this platform": (
        f"The lock file names a wheel for another platform or another Python than this one ({_PYTHON}).\n"
        f"Name a wheel for this platform, or lock the package by its version and not by an address: {_REMAKE}."
    ),
    r"has an invalid wheel|is invalid\.|BadZipFile|not a valid wheel|is not a zip file": (
        "A wheel has the locked hash and still cannot be unpacked: it was damaged before it was locked.\n"
        f"Ask the people who built it for a whole one, take another version, and {_REMAKE}."
    ),
    rf"(?s){re.escape(_UNREACHABLE)}.*{_NOT_FOUND}": (
        "The package index could not be reached.\n"
        "Check the network, or pip's configuration (pip config list) for the mirror of this machine."
    ),
    _NOT_FOUND: (
        f"No index that pip knows has that version as a wheel for Python {_PYTHON} and this processor.\n"
        "Choose another interpreter, name an index that has it (extra_index_urls in MODULE.bazel, or pip config "
        f"set global.find-links), or lock a version that has such a wheel: {_REMAKE}."
    ),
    "": "pip's own words are above.\nTo repeat it by hand, use the command in the first line.",
}


def _cause_and_way_out(output: str) -> str:
    """Return the likely cause of pip's failure and the way out, as two lines."""
    return next(text for pattern, text in _EXPLAINED.items() if re.search(pattern, output))


def _run(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Run a program; return its exit status and its output."""
    done = subprocess.run(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return done.returncode, done.stdout


def _run_pip(lock: Path, name: str, folder: Path, extra_index_urls: Sequence[str]) -> None:
    """Install the wheels of a lock file into `folder / SITE`."""
    command = [*_pip(), "install", "--require-hashes", "--no-deps", "--no-compile", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--no-warn-script-location"]
    command += ["--target", str(folder / SITE), "-r", str(lock)]
    attempts: list[list[str]] = [[]]
    if extra_index_urls:
        # In a second attempt, because pip asks every index for every package. With few retries, because for an index
        # that this machine cannot reach, pip waits for all of them once per package.
        attempts.append([f"--extra-index-url={url}" for url in extra_index_urls] + ["--retries", "1"])
    telling = ""
    for more in attempts:
        # pip unpacks here and then moves the files; a move between file systems would be a second copy.
        temporary = Path(tempfile.mkdtemp(prefix="pip-", dir=folder))
        try:
            words = [command[0], "-c", _SAME_PROGRAMS, *command[1:], *more]
            status, output = _run(words, _environment(temporary))
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        if status == 0:
            return
        # If the extra index cannot be reached, the reason of the first attempt is the useful one.
        if not telling or _UNREACHABLE not in output:
            telling = output
        if _NOT_FOUND not in output:
            break
    raise InstallError(
        f"The wheels of {name} could not be installed. `{shlex.join(command)}` said:\n"
        f"{telling.strip()[-_SHOWN:]}\n{_cause_and_way_out(telling)}"
    )


def _compile(folder: Path) -> None:
    """Write the bytecode of every module.

    The folder is an input of tests and never changes, so Python need not compare bytecode with its source. Bytecode
    names its source below the folder, so that it is the same on every machine; an import puts the real path there.
    """
    command = [sys.executable, "-I", "-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash"]
    command += ["-s", str(folder)]
    environment = {key: value for key, value in _environment().items() if not key.startswith("PYTHON")}
    status, output = _run([*command, str(folder / SITE)], environment)
    # Status 1 means that some file does not compile: wheels have templates and sources for other Pythons.
    # As in any installation, Python compiles such a file when it is imported.
    if status not in (0, 1) or _NO_SPACE in output:
        raise InstallError(
            f"The wheels could not be compiled. `{shlex.join(command)}` ended with status {status}:\n"
            f"{output.strip()[-_SHOWN:]}\n{_cause_and_way_out(output)}"
        )


def normalized(name: str) -> str:
    """Return a package's name as hubs spell it: lower case, words joined by one underscore."""
    return re.sub(r"[-_.]+", "_", name).lower()


def _copy_metadata(folder: Path) -> None:
    """Give each package a folder of its own with its metadata, which rules for its programs read."""
    for info in sorted((folder / SITE).glob("*.dist-info")):
        metadata = HeaderParser().parsestr((info / "METADATA").read_text(encoding="utf-8", errors="replace"))
        target = folder / normalized(metadata["Name"] or info.name.split("-")[0]) / "dist_info"
        target.mkdir(parents=True, exist_ok=True)
        for file in info.iterdir():
            if file.is_file():
                shutil.copyfile(file, target / file.name)


def install(lock: Path, name: str, folder: Path, extra_index_urls: Sequence[str] = ()) -> None:
    """Install, compile and describe the wheels of a lock file.

    Args:
        lock: The lock file.
        name: Its name in error texts.
        folder: An existing folder for the results.
        extra_index_urls: Indexes that pip asks when those of its configuration do not have a wheel.
    """
    try:
        _run_pip(lock, name, folder, extra_index_urls)
        _compile(folder)
        _copy_metadata(folder)
    except OSError as error:
        raise InstallError(
            f"The wheels of {name} could not be installed in {folder} ({error}).\n"
            f"{_cause_and_way_out(error.strerror or '')}"
        ) from None


def main() -> int:
    """Install the wheels that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--lock", type=Path, required=True)
    parser.add_argument("--name", required=True, help="name of the lock file in error texts")
    parser.add_argument("--extra-index-url", action="append", default=[])
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    try:
        install(options.lock, options.name, options.folder.absolute(), options.extra_index_url)
    except InstallError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
