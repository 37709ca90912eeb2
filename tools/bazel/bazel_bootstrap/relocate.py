"""Adapts Bazel and its JVM to the prefix."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

from debian_prefix.relocate import set_libraries


def point_at_libraries(
    prefix: Path, *, libraries: Path, loader: Path, java_home: Path, patchelf: Path, lock: int
) -> None:
    """Make the programs and the JVM's libraries use the prefix's libc and no other.

    Raises:
        ProgramError: If a file cannot be changed.
    """
    beside = f"$ORIGIN:$ORIGIN/..:$ORIGIN/../lib:{libraries}"

    programs = [prefix / "usr/bin/bazel", *(prefix / "usr/libexec").glob("*/bazel/*")]
    jvm = [java_home / "bin/java", java_home / "bin/keytool", java_home / "lib/jspawnhelper"]
    files = [*programs, *jvm, *(java_home / "lib").rglob("*.so")]
    found = (file for file in files if _is_elf(file))
    set_libraries(found, search_path=beside, loader=loader, patchelf=patchelf, lock=lock)


def complete_jar_list(prefix: Path, listing: Path) -> None:
    """Rewrite Bazel's list of jars to paths in the prefix, with the jars that those need in turn.

    The file has absolute paths, one per line, as if the prefix were /. Bazel loads the listed jars itself, so it does
    not follow a manifest's Class-Path.
    """
    queue = listing.read_text(encoding="utf-8").split()
    jars: dict[Path, None] = {}
    while queue:
        jar = Path(f"{prefix}{queue.pop(0)}")
        # Packages name optional jars that they do not depend on.
        if jar in jars or not jar.exists():
            continue
        jars[jar] = None
        queue += _class_path(jar)
    listing.write_text("".join(f"{jar}\n" for jar in jars), encoding="utf-8")


def _class_path(jar: Path) -> Iterator[str]:
    """Yield the jars that a jar's manifest names, as absolute paths."""
    with zipfile.ZipFile(jar) as archive:
        if "META-INF/MANIFEST.MF" not in archive.namelist():
            return
        manifest = archive.read("META-INF/MANIFEST.MF").decode(errors="replace")
    # A manifest wraps its lines at 72 bytes; a continuation starts with a space.
    for line in manifest.replace("\r\n", "\n").replace("\n ", "").splitlines():
        if line.startswith("Class-Path:"):
            for name in line.partition(":")[2].split():
                yield name if name.startswith("/") else f"/usr/share/java/{name}"


def _is_elf(file: Path) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as stream:
        return stream.read(4) == b"\x7fELF"
