"""Finds an interpreter of each version: on this machine, as a download of uv, or from Debian's archive."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from debian_prefix.apt import PrivateApt
from debian_prefix.cache import PARTIAL, locked, require_free_space
from debian_prefix.errors import InstallError
from debian_prefix.packages import NotOfferedError, missing_tools, select_packages, unpack
from debian_prefix.programs import ProgramError
from debian_prefix.relocate import repoint_symlinks, set_libraries

from version_runs import source_build
from version_runs.commands import run
from version_runs.errors import VersionsError

# A question to an interpreter, and a download by uv. Seconds.
_ASK_LIMIT_S = 30.0
_DOWNLOAD_LIMIT_S = 120.0
# A Debian prefix with an interpreter, with the downloads. Bytes.
_DEBIAN_BYTES = 300 * 10**6
_PROBE = """
import platform, sys, sysconfig
free = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
print(f"{sys.version_info[0]}.{sys.version_info[1]}{free}", f"{platform.python_version()}{free}")
"""


@dataclass(frozen=True, slots=True)
class Python:
    """An interpreter.

    Attributes:
        program: Its path.
        full: Its version, such as "3.12.1", or "3.14.7t" without the GIL.
        source: Where it comes from, for readers: "this machine", "uv's download", "Debian sid", "built from source".
    """

    program: Path
    full: str
    source: str


def find(version: str, uv: Path, folder: Path, patchelf: Path) -> Python:
    """Return an interpreter of a version.

    Args:
        version: Such as "3.12", or "3.14t" for the build without the GIL.
        uv: The program.
        folder: Place for downloads; kept, because every pair with this version uses them.
        patchelf: The program that points a Debian interpreter at its own libraries.

    Raises:
        VersionsError: If there is none. The first line has the answer of each place, and the second one the reasons,
            which name hosts and folders of this machine.
    """
    for program in _on_this_machine(version):
        if full := _full_version(program, version):
            return Python(program, full, "this machine")
    answers = ["it is not on this machine"]
    reasons: list[str] = []
    for attempt, tool in ((_by_uv, uv), (_by_sources if version.endswith("t") else _by_debian, patchelf)):
        try:
            return attempt(version, tool, folder)
        except VersionsError as error:
            answer, *more = str(error).splitlines()[:-1]
            answers.append(answer)
            reasons += map(str.strip, more)
    raise VersionsError(
        f"no interpreter of Python {version}: {'; '.join(answers)}.",
        " ".join(reasons),
        "Install it, such as by pyenv, and start this again.",
    )


def _on_this_machine(version: str) -> Iterator[Path]:
    """Yield programs that may be an interpreter of the version: on PATH, and pyenv's."""
    folders = [Path(entry) for entry in os.environ.get("PATH", "").split(os.pathsep) if entry]
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    # A shim of pyenv works only for the versions that are switched on; these are the interpreters behind them.
    folders += sorted(pyenv.glob("versions/*/bin"))
    for folder in folders:
        program = folder / f"python{version}"
        if os.access(program, os.X_OK):
            yield program


def _full_version(program: Path, version: str) -> str | None:
    ended = run([program, "-I", "-c", _PROBE], _ASK_LIMIT_S)
    words = ended.log.split()
    return words[1] if ended.status == 0 and len(words) == 2 and words[0] == version else None


def _by_uv(version: str, uv: Path, folder: Path) -> Python:
    place = folder / "uv-pythons"
    ended = run(
        [uv, "python", "install", "--no-bin", version],
        _DOWNLOAD_LIMIT_S,
        environment={"UV_PYTHON_INSTALL_DIR": str(place)},
    )
    for program in sorted(place.glob(f"*/bin/python{version}")):
        if full := _full_version(program, version):
            return Python(program, full, "uv's download")
    raise VersionsError("uv cannot download it", f"It says: {ended.last_lines}", "Use another interpreter.")


def _by_sources(version: str, _: Path, folder: Path) -> Python:
    program = source_build.built(version, folder, source_build.SOURCES.get(version))
    if full := _full_version(program, version):
        return Python(program, full, "built from source")
    raise VersionsError(
        f"the build '{program}' does not start", "It is incomplete.", "Remove its folder, and try again."
    )


def _by_debian(version: str, patchelf: Path, folder: Path) -> Python:
    """Return Debian's interpreter, unpacked below `folder` with its own C library."""
    package = f"python{version}"
    prefix = folder / f"{package}-debian"
    try:
        if not (prefix / source_build.FINISHED).exists():
            _unpack_debian(package, prefix, patchelf)
    except (InstallError, NotOfferedError, ProgramError) as error:
        shutil.rmtree(prefix, ignore_errors=True)
        raise VersionsError("Debian's archive does not give it", str(error), "Use another interpreter.") from error
    program = prefix / "usr/bin" / package
    full = _full_version(program, version)
    if full is None:
        raise VersionsError(
            f"Debian's '{program}' does not start", "The prefix is incomplete.", "Remove the folder, and try again."
        )
    return Python(program, full, f"Debian {(prefix / source_build.FINISHED).read_text(encoding='utf-8')}")


def _unpack_debian(package: str, prefix: Path, patchelf: Path) -> None:
    if missing := missing_tools():
        raise ProgramError(f"{', '.join(missing)} not found on PATH")
    shutil.rmtree(prefix, ignore_errors=True)
    with locked(prefix.parent) as lock, tempfile.TemporaryDirectory(suffix=PARTIAL, dir=prefix.parent) as work:
        require_free_space(prefix.parent, _DEBIAN_BYTES)
        prefix.mkdir()
        (Path(work) / "apt").mkdir()
        apt = PrivateApt(Path(work) / "apt", lock)
        selection = select_packages(apt, [package], not_needed=re.compile(r"debconf|perl|systemd|passwd"))
        unpack(selection, apt, prefix, Path(work) / "debs", lock)
        repoint_symlinks(prefix)
        loader = next(prefix.glob("usr/lib/*/ld-linux*.so.*"), None)
        if loader is None:
            raise ProgramError(f"no dynamic loader below '{prefix}'")
        program = prefix / "usr/bin" / package
        set_libraries([program], search_path=str(loader.parent), loader=loader, patchelf=patchelf, lock=lock)
        (prefix / source_build.FINISHED).write_text(selection.suite, encoding="utf-8")
