#!/usr/bin/env python3
"""Makes the site of the documentation: `python3 tools/site/make_site.py --help`."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

# `bazel run` tells where the sources are.
ROOT = Path(os.environ.get("BUILD_WORKSPACE_DIRECTORY") or Path(__file__).absolute().parents[2])

# In plain Python. Bazel has both on its path.
sys.path += [str(Path(__file__).parent), str(ROOT / "tools" / "release")]

from pages import CONTENTS, fetched, navigation, page_text, places  # noqa: E402 - after the path is complete
from release_steps.commands import ReleaseError, make_tools, output_of  # noqa: E402


def main() -> int:
    """Make a site of README.md and docs/. Return 0 if each link leads somewhere and no page needs another host."""
    parser = argparse.ArgumentParser(prog="site", description=main.__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / "site", metavar="DIRECTORY", help="for the site")
    output: Path = parser.parse_args().output.absolute()
    try:
        with tempfile.TemporaryDirectory(prefix="dist-site-") as name:
            _make(output, Path(name))
    except ReleaseError as error:
        print(f"site: error: {error}", file=sys.stderr)
        return 1
    found = list(fetched(output))
    for text in found:
        print(f"site: WRONG: {text}", file=sys.stderr)
    if found:
        return 1
    print(f"site: made {output / 'index.html'}; with search: python3 -m http.server --directory {output}")
    return 0


def _make(output: Path, scratch: Path) -> None:
    python = make_tools(scratch / "tools", ROOT / "requirements_docs.txt")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    repository = project["urls"]["Homepage"]
    where = places(output_of(["git", "ls-files", "--", "README.md", "docs"], ROOT).splitlines())
    for page, place in where.items():
        target = scratch / "docs" / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page_text(ROOT, page, where, repository), encoding="utf-8")
    shutil.copy(ROOT / "tools" / "site" / "site.css", scratch / "docs")
    # JSON is YAML, too.
    config = {
        "INHERIT": str(ROOT / "tools" / "site" / "mkdocs.yml"),
        "docs_dir": "docs",
        "site_dir": str(output),
        "nav": navigation((ROOT / CONTENTS).read_text(encoding="utf-8")),
        "extra": {"social": [{"icon": "fontawesome/brands/git-alt", "link": repository, "name": "Sources"}]},
    }
    (scratch / "mkdocs.yml").write_text(json.dumps(config), encoding="utf-8")
    output_of([python, "-m", "mkdocs", "build", "--strict"], scratch)


if __name__ == "__main__":
    sys.exit(main())
