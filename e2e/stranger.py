"""The add-on of `e2e/add_on`, installed by pip beside the installed library, as on a machine of another project."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from e2e.problems import problems
from tests.support.nested_bazel import ROOT, Done, scratch_folder

# What the add-on says of the tests that fail on purpose: its explainer, its watcher, its resource, its rank service.
WRONG = (
    r"^Rank 1 has read a key that no rank had set\.",
    r"server_overflows \(world of 2\): the key-value server has \d+ keys; the limit is 100 \(add-on key_value\)",
    r"lock_is_left \(world of 2\): the lock 'lock:model' is left in the key-value server",
    r"^Key-value server, keys at the end of rank 1: 1\.",
)
# Threads are tested under Bazel.
_ISOLATIONS = ("fork", "spawn", "pool")
# What pip needs of the library. A build in the checkout would leave files there.
_SOURCES = ("dist_testing", "pyproject.toml", "README.md", "LICENSE")


def installed_problems(add_on: Path) -> list[str]:
    """Install both into a new environment, and run the tests of the add-on's project with each isolation."""
    with scratch_folder("e2e.add_on") as folder:
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        python = folder / "venv" / "bin" / "python"
        # Torch and pytest come from the environment of this program as far as it has them; pip installs the others.
        (site,) = (folder / "venv").glob("lib/python*/site-packages")
        outer = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
        (site / "outer.pth").write_text("\n".join(outer), encoding="utf-8")
        _copy(ROOT, folder / "library", _SOURCES)
        _copy(add_on, folder / "add_on", ("key_value", "pyproject.toml"))
        _copy(add_on, folder, ("tests",))
        done = _run([python, "-m", "pip", "install", "--quiet", folder / "library", folder / "add_on"], folder)
        if found := problems("add_on: pip install", done, status=0, parts=()):
            return found
        for isolation in _ISOLATIONS:
            options = ("-rA", "--dist-world-size=2", f"--dist-isolation={isolation}")
            done = _run([python, "-m", "pytest", *options, "tests"], folder)
            passed = (r"^PASSED .*share_a_server\[[12]\]", r"^PASSED .*test_no_server", "3 failed, 3 passed")
            found += problems(f"add_on: installed, {isolation}", done, status=1, parts=(*WRONG, *passed))
            servers = re.findall(r"key-value server (\d+) serves", done.output)
            found += [] if servers else [f"add_on: installed, {isolation}: no server was started"]
            alive = [pid for pid in servers if Path("/proc", pid).exists()]
            found += [f"add_on: installed, {isolation}: server {pid} still runs" for pid in alive]
    return found


def _copy(source: Path, target: Path, names: tuple[str, ...]) -> None:
    target.mkdir(exist_ok=True)
    for name in names:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source / name, target)


def _run(command: Sequence[str | Path], folder: Path) -> Done:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return Done(done.returncode, done.stdout, done.stderr)
