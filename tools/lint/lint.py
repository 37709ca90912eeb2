"""Runs all static checks of this repository: `./bazelw run //tools/lint`; with `-- --fix` it repairs what it can.

Python: ruff (rules and form), mypy (strict), import-linter (layers; the contracts are in pyproject.toml). Starlark:
buildifier. Pages: links, words, sentences, code. Sizes: sizes.json, which `--fix` writes anew. Names of add-ons in the
core: mentions.py. CI runs the same command.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from blocks import wrong_blocks
from mentions import wrong_mentions
from pages import broken_links, long_sentences, wrong_words
from sizes import wrong_sizes

# Each group is checked by itself, because a program's folder is on its path and its module names may repeat those of
# others. Group -> folders on its path.
_MYPY_GROUPS: dict[tuple[str, ...], tuple[str, ...]] = {
    (
        "dist_testing",
        "e2e/check.py",
        "e2e/first_week.py",
        "e2e/problems.py",
        "e2e/questions.py",
        "e2e/release_archive.py",
        "e2e/stranger.py",
        "tests",
    ): (".",),
    ("tools/bazel", "tools/debian_prefix"): ("tools/bazel", "tools/bazel/tests", "tools/debian_prefix"),
    ("tools/bench",): (".", "tools/bench"),
    ("tools/docs",): (".", "tools/docs"),
    ("tools/gpu",): (".", "tools/gpu"),
    ("tools/init",): ("tools/init",),
    ("tools/nodes",): (".", "tools/debian_prefix", "tools/nodes"),
    ("tools/rbe",): ("tools/debian_prefix", "tools/rbe", "tools/rbe/pool_check"),
    ("tools/ci",): (".", "tools/ci"),
    ("tools/release",): (".", "tools/release"),
    ("tools/site",): (".", "tools/release", "tools/site"),
    # nox, which the third file needs, is in no lock.
    ("tools/versions/supported.py", "tools/versions/test_supported.py"): ("tools/versions",),
    ("tools/golden", "tools/lint", "tools/python"): ("tools/lint", "tools/python"),
    ("wheels",): ("wheels",),
}
# Not Bazel's links, and not fixtures, which are no code of this repository.
_STARLARK = ("*.bzl", "*.bazel", "WORKSPACE")
# Its script names the interpreter that installed it, which need not be there any more.
_IMPORT_LINTER = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def main() -> int:
    """Run the checks; return 0 if no check fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fix", action="store_true", help="make the repairs that the tools can make")
    fix = parser.parse_args().fix
    workspace = os.environ.get("BUILD_WORKSPACE_DIRECTORY")
    if workspace is None:
        print("lint: the folder of the repository is unknown.\n`bazel run` sets it.\nRun ./bazelw run //tools/lint.")
        return 2
    os.chdir(workspace)
    steps = [
        [_tool("ruff"), "check", "--quiet", *(["--fix"] if fix else [])],
        [_tool("ruff"), "format", "--quiet", *([] if fix else ["--diff"])],
        [_buildifier(), f"-mode={'fix' if fix else 'check'}", "-lint=warn", *_files(*_STARLARK)],
    ]
    failed = [step for step in steps if _fails(step)]
    imports = [sys.executable, "-c", _IMPORT_LINTER, "--no-cache"]
    if _fails(imports):
        failed.append(imports)
    for folders, path in _MYPY_GROUPS.items():
        step = [sys.executable, "-m", "mypy", *folders]
        if _fails(step, MYPYPATH=os.pathsep.join(path)):
            failed.append(step)
    for step in failed:
        print(f"lint: failed: {' '.join(step[:6])}{' ...' if len(step) > 6 else ''}")
    pages = _files("*.md")
    for_users = [page for page in pages if re.fullmatch(r"docs/[^/]+|README.md|CHANGELOG.md|SECURITY.md", page)]
    complaints = [
        *broken_links(pages),
        *wrong_words(for_users),
        *long_sentences(for_users),
        *wrong_blocks(page for page in for_users if page != "CHANGELOG.md"),
        *wrong_mentions(Path()),
        *wrong_sizes(Path(), fix=fix),
    ]
    for complaint in complaints:
        print(f"lint: {complaint}")
    return 1 if failed or complaints else 0


def _fails(step: Sequence[str], **env: str) -> bool:
    print(f"lint: {Path(step[0]).name} {' '.join(step[1:4])}", flush=True)
    # Child programs must find their packages in the same places as this one.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.run(step, env={**os.environ, "PYTHONPATH": path, **env}, check=False).returncode != 0


def _tool(name: str) -> str:
    """Return a program from the wheels."""
    for entry in sys.path:
        program = Path(entry, "bin", name)
        if program.exists():
            return str(program)
    raise SystemExit(f"lint: {name} is not in the lint environment.\nRemake it: ./bazelw sync --only=pypi_lint")


def _files(*patterns: str) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        check=True,
        capture_output=True,
        text=True,
    )
    return [name for name in listed.stdout.splitlines() if os.path.exists(name)]


def _buildifier() -> str:
    """Return buildifier from PATH, else from npm in the user's cache. The lock file has the hash of npm's package."""
    if found := shutil.which("buildifier"):
        return found
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "dist_testing", "lint")
    program = cache / "node_modules" / ".bin" / "buildifier"
    if not program.exists():
        if shutil.which("npm") is None:
            raise SystemExit(
                "lint: neither buildifier nor npm is on PATH.\n"
                "buildifier checks the Starlark files; npm would fetch it.\n"
                "Install one of the two."
            )
        cache.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(Path("tools", "lint", name), cache / name)
        # Not by --prefix, because npm then reads the machine's settings below that folder.
        fetch = ["npm", "ci", "--no-progress", "--ignore-scripts"]
        fetched = subprocess.run(
            fetch, cwd=cache, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if fetched.returncode != 0:
            raise SystemExit(
                f"lint: npm could not fetch buildifier:\n{fetched.stdout.strip()}\n"
                "npm's registry cannot be reached from this machine.\n"
                "Set npm's registry, or put a buildifier on PATH."
            )
    return str(program)


if __name__ == "__main__":
    sys.exit(main())
