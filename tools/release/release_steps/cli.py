"""The command line."""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
from pathlib import Path

from release_steps.archives import archive_problems, build, placeholders
from release_steps.commands import ReleaseError, make_environment, make_tools, output_of
from release_steps.installed import installed_problems, site_with_torch, wrong_adapter

_TOOLS = "requirements_release.txt"


def main(root: Path) -> int:
    """Build and check the archives of the commit HEAD. Return 0 if nothing is wrong with them."""
    parser = argparse.ArgumentParser(prog="release", description=main.__doc__)
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="for the archives (default: dist, in the clone)")
    parser.add_argument(
        "--site",
        type=Path,
        metavar="FOLDER",
        help="site-packages with torch, which the check of the wheel uses (default: those of this Python; if it has no "
        "torch, pip installs one)",
    )
    parser.add_argument(
        "--with-suite", action="store_true", help="the stranger also runs a suite with a harness of its own (minutes)"
    )
    options = parser.parse_args()
    try:
        output, site = (options.output or root / "dist").absolute(), options.site or site_with_torch()
        return _release(root, output, site, with_suite=options.with_suite)
    except ReleaseError as error:
        print(f"release: error: {error}", file=sys.stderr)
        return 1


def _release(root: Path, output: Path, site: Path | None, *, with_suite: bool) -> int:
    if changed := output_of(["git", "status", "--porcelain"], root).splitlines():
        print(f"release: the archives have the commit HEAD, without {len(changed)} uncommitted change(s)")
    with tempfile.TemporaryDirectory(prefix="dist-release-") as name:
        scratch = Path(name)
        tools = make_tools(scratch / "tools", root / _TOOLS)
        archives = build(root, output, scratch, tools)
        found = archive_problems(archives, root, tools)
        print("release: the archives are built; now a stranger installs the wheel, and uses it", flush=True)
        stranger = scratch / "stranger"
        stranger.mkdir()
        python = make_environment(scratch / "fresh", sys.executable, site)
        found += installed_problems(archives.wheel, archives.version, root, stranger, python)
        if with_suite:
            found += wrong_adapter(python, root / "tests" / "adopt" / "spawn_suite.py", stranger)
    for text in found:
        print(f"release: WRONG: {text}", file=sys.stderr)
    if found:
        return 1
    for file in (archives.sdist, archives.wheel, archives.bazel):
        print(f"release: {hashlib.sha256(file.read_bytes()).hexdigest()}  {file}")
    if lines := placeholders(root):
        print("release: before the upload, write the owner's data in place of OWNER:", *lines, sep="\n  ")
    else:
        print(f"release: upload by: twine upload {archives.sdist} {archives.wheel}")
    return 0
