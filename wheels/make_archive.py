"""Turn an installed site-packages into one archive that a worker unpacks once. `wheels_archive_repo` runs this.

    python3 make_archive.py SITE_PACKAGES OUT

It writes into the folder OUT:

- `site.tar`: every file, sorted by name, without times or owners. The same files make the same bytes, so that machines
  with the same lock file share a remote cache.
- `site.json`: a description of it. `archive_loader.py` defines the format.
- `stubs/`: a module for every package at the top of SITE_PACKAGES, which gives way to the real one.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

# A comment for readers of a stub. The loader is a file beside the stubs.
_STUB = """\
# Stands for the real module, which is still in the archive.
from _dist_testing_wheels import give_way

give_way(__name__, __file__)
"""

_LOADER = "archive_loader.py"
_LOADER_MODULE = "_dist_testing_wheels"


def files_below(folder: Path) -> Iterator[Path]:
    """Return all files below a folder, in an order that does not depend on the file system."""
    for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix()):
        if path.is_file():
            yield path


def top_modules(site: Path) -> list[str]:
    """Return the modules and packages of a site-packages: paths of the stubs, relative to their folder."""
    stubs = []
    for path in sorted(site.iterdir()):
        name = path.name.partition(".")[0]
        if not name.isidentifier() or name == "__pycache__":
            continue
        if path.is_dir():
            # `numpy.libs` and `torch-2.13.dist-info` are not packages, and neither are `bin` and `share`.
            if path.name == name and any(path.rglob("*.py")):
                stubs.append(f"{name}/__init__.py")
        elif path.suffix in (".py", ".so"):
            stubs.append(f"{name}.py")
    return stubs


def make_archive(site: Path, out: Path) -> None:
    """Write the archive of a site-packages, its description and the stubs into an existing folder."""
    size = 0
    with tarfile.open(out / "site.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        for path in files_below(site):
            member = tarfile.TarInfo(path.relative_to(site).as_posix())
            member.size = path.stat().st_size
            member.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            with path.open("rb") as content:
                archive.addfile(member, content)
            size += member.size
    with (out / "site.tar").open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    description = {
        "schema": 1,
        "sha256": digest,
        "bytes": size,
        "python": sys.implementation.cache_tag,
        "machine": platform.machine(),
    }
    (out / "site.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    stubs = out / "stubs"
    for name in top_modules(site):
        stub = stubs / name
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.write_text(_STUB, encoding="utf-8")
    shutil.copyfile(Path(__file__).with_name(_LOADER), stubs / f"{_LOADER_MODULE}.py")


if __name__ == "__main__":
    make_archive(Path(sys.argv[1]), Path(sys.argv[2]))
