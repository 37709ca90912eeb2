"""The consumers that pages of docs/ show: the blocks of code that name their files, and the repository of one page."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.nested_bazel import ROOT
from tests.support.page_steps import page_files

CONSUMERS = ROOT / "docs" / "consumers.md"


def page_problems(page: Path) -> list[str]:
    """Say which lines of a page's blocks no consumer here has. `mine` is made as docs/consumers.md says."""
    blocks = list(page_files(page))
    found = [] if blocks else [f"{page.name}: no block of code names its file"]
    for name, block in ((file.name, file.text) for file in blocks):
        # Its lock file is the one in this folder.
        name = {"mine/requirements.in": "e2e/requirements.in"}.get(name, name)
        if not name.startswith(("mine/", "mine:", "more/")):
            lines = set((ROOT / name).read_text(encoding="utf-8").splitlines())
            found += [f"{page.name}: {name} has no line {line!r}" for line in block.splitlines() if line not in lines]
    return found


def make_mine(page: Path, folder: Path) -> Path:
    """Follow docs/consumers.md: make its repository in an empty folder, beside the library, and return it."""
    workspace = folder / "mine"
    workspace.mkdir()
    (folder / "dist_testing").symlink_to(ROOT)
    subprocess.run([sys.executable, "../dist_testing/tools/init/init.py"], cwd=workspace, check=True)
    for name, block in ((file.name, file.text) for file in page_files(page)):
        if name.startswith("mine/") and (folder / name).read_text(encoding="utf-8") != block:
            raise SystemExit(f"e2e.check: tools/init writes another {name} than {page.name} shows")
        if name.startswith("more/"):
            # What later parts of the page add.
            path = workspace / name.removeprefix("more/")
            path.parent.mkdir(exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(block)
    slow = (workspace / "fast" / "BUILD.bazel").read_text(encoding="utf-8").replace("test_fast.py", "test_slow.py")
    (workspace / "slow" / "BUILD.bazel").write_text(slow, encoding="utf-8")
    # In place of the page's command, which would ask the network.
    shutil.copy(ROOT / "e2e" / "requirements.txt", workspace)
    return workspace
