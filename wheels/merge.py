"""Link the files of wheels, each in a folder of its own, into one site-packages. `merged_site_packages` runs this.

    python3 merge.py LABEL OUT LIST

LIST is a file of lines with tab characters between their fields: `import` and a folder on Python's path, or `file`, the
path of a file in the runfiles, and where it is now. Every file below one of the folders gets a link in the folder OUT.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

# What Python imports. If two wheels have such a file, a test would get one of them by chance.
_IMPORTED = (".py", ".so")
# Makes a folder a namespace package, as rules_python does for wheels that lack the file.
_NAMESPACE = "extend_path(__path__"


class MergeError(Exception):
    """The wheels cannot be one folder; the text says why."""


def plan(label: str, lines: Sequence[str]) -> dict[str, Path]:
    """Return path in the merged folder -> the file that it links to; the top of this file has the form of `lines`.

    Raises:
        MergeError: If a Python file is below no folder, or two wheels have different modules of the same name.
    """
    fields = [line.rstrip("\n").split("\t") for line in lines]
    roots = {field[1] for field in fields if field[0] == "import"}
    chosen: dict[str, Path] = {}
    for kind, *paths in fields:
        if kind != "file":
            continue
        place, source = _below(paths[0], roots), Path(paths[1])
        if place is None:
            if paths[0].endswith(_IMPORTED):
                raise MergeError(
                    f"{label}: {paths[0]} is in no folder that its target adds to Python's path.\n"
                    "merged_site_packages merges installed wheels; this file is of a library with modules of its own.\n"
                    "Name packages of a hub in deps, such as @pypi//torch, and other libraries in the deps of the test."
                )
            # A program or a data file of the wheel, outside its site-packages.
            continue
        before = chosen.setdefault(place, source)
        if before is not source and place.endswith(_IMPORTED):
            chosen[place] = _better(label, place, before, source)
    return chosen


def link(files: dict[str, Path], out: Path) -> None:
    """Make the links. They lead to the real files, so that libraries find each other by the folder of the link."""
    folders = set()
    for place, source in files.items():
        path = out / place
        if path.parent not in folders:
            path.parent.mkdir(parents=True, exist_ok=True)
            folders.add(path.parent)
        path.symlink_to(source.resolve())


def main(arguments: Sequence[str]) -> int:
    """Merge what the command line names; return 0 if it was done, 1 with a text on stderr if not."""
    label, out, listed = arguments
    try:
        files = plan(label, Path(listed).read_text(encoding="utf-8").splitlines())
        if not files:
            raise MergeError(
                f"{label}: the packages in deps have no files below their site-packages.\n"
                "They are for another platform, or of a hub of @dist_testing//wheels, which is one folder already.\n"
                "Name packages of a hub of pip.parse in deps, such as @pypi//torch."
            )
        link(files, Path(out))
    except MergeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _below(path: str, roots: set[str]) -> str | None:
    """Return the path relative to the deepest of the folders that contain it; None if none does."""
    parts = path.split("/")
    for length in range(len(parts) - 1, 0, -1):
        if "/".join(parts[:length]) in roots:
            return "/".join(parts[length:])
    return None


def _better(label: str, place: str, first: Path, second: Path) -> Path:
    """Return the file that the merged folder gets, of two with the same path."""
    contents = [path.read_bytes() for path in (first, second)]
    if contents[0] == contents[1]:
        return first
    if Path(place).name == "__init__.py":
        named = [path for path, content in zip((first, second), contents, strict=True) if not _is_namespace(content)]
        if len(named) < 2:
            return named[0] if named else first
    raise MergeError(
        f"{label}: {place} is in two wheels, and differs: {first} and {second}.\n"
        "In one folder there is room for one of them: these are two versions of a package, or packages that collide.\n"
        "Name each package once in deps, in one version; or leave one of the two out."
    )


def _is_namespace(content: bytes) -> bool:
    """Return whether an `__init__.py` has no code but that of a namespace package."""
    text = content.decode("utf-8", errors="replace")
    code = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return not code or _NAMESPACE in text


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
