"""Installs a wheel into a fresh environment, and uses it as a stranger does: no file of the repository is in sight.

Each command is printed with its seconds: docs/evidence/first_hour.md has those of one run.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from release_steps.commands import ReleaseError, run
from tests.support.page_steps import PageFile, page_steps

_FACTS = """
import importlib.util, json, os, dist_testing, torch
print(json.dumps({
    "version": dist_testing.__version__,
    "is installed": os.path.realpath(dist_testing.__file__).startswith(os.path.realpath(os.sys.prefix)),
    "has runfiles": importlib.util.find_spec("runfiles") is not None,
    "torch": torch.__file__,
}))
"""
# A file that is run as a program imports the library before pytest does, which pytest would warn of.
_PROGRAM = """
import dist_testing
import pytest

@pytest.mark.distributed(world_size=2)
def test_two(world):
    world.barrier()

if __name__ == "__main__":
    dist_testing.run_tests()
"""


def site_with_torch() -> Path | None:
    """Return the folder from which this Python would import torch; None if it has none."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parents[1] if spec is not None and spec.origin else None


def installed_problems(wheel: Path, version: str, root: Path, folder: Path, python: Path) -> Iterator[str]:
    """Install a wheel with pip into a fresh environment, and yield what a stranger would find wrong.

    The stranger works in an empty folder outside the repository, and runs the commands of its tutorial.
    """
    before = run([python, "-c", "import torch; print(torch.__file__)"], folder)[1].strip()
    code, printed = _timed(python, ["-m", "pip", "install", "--quiet", str(wheel)], folder, "pip install dist_testing")
    if code:
        raise ReleaseError(f"pip install ended with {code}:\n{printed}\nIts output names the cause.\nRepair that.")
    facts = json.loads(run([python, "-c", _FACTS], folder)[1].splitlines()[-1])
    torch = facts.pop("torch")
    if before.endswith("__init__.py") and torch != before:
        yield f"pip has replaced the torch of the environment, {before}, by {torch}"
    wanted = {"version": version, "is installed": True, "has runfiles": False}
    if facts != wanted:
        yield f"after pip install: {facts}, expected {wanted}"
    printed = run([python, "-m", "pytest", "--version", "--version"], folder)[1]
    if f"dist_testing-{version} at " not in printed:
        yield f"pytest --version --version does not show dist_testing-{version}:\n{printed}"
    yield from _warnings(python, folder)
    (folder / "pytest.ini").unlink()
    yield from _differing_output(python, root / "docs" / "tutorial.md", folder)


def _timed(python: Path, words: Sequence[str], folder: Path, shown: str = "") -> tuple[int, str]:
    """Run Python with these arguments, as `run`, and print the command with its seconds."""
    start = time.monotonic()
    code, printed = run([python, *words], folder)
    print(f"release: {time.monotonic() - start:5.1f} s  {shown or ' '.join(['python', *words])}", flush=True)
    return code, printed


def _warnings(python: Path, folder: Path) -> Iterator[str]:
    (folder / "test_two.py").write_text(_PROGRAM, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n", encoding="utf-8")
    for command in (["test_two.py"], ["-m", "pytest", "test_two.py"], ["-W", "error", "test_two.py"]):
        code, printed = run([python, *command], folder)
        if code or "1 passed" not in printed or "Warning" in printed:
            yield f"python {' '.join(command)}, with filterwarnings = error, ended with {code}:\n{printed}"


def _differing_output(python: Path, page: Path, folder: Path) -> Iterator[str]:
    programs: Mapping[str, Sequence[str]] = {
        "pytest": ("-m", "pytest"),
        "torchrun": ("-m", "torch.distributed.run", "--local-addr=127.0.0.1"),
    }
    for step in page_steps(page):
        if isinstance(step, PageFile):
            (folder / step.name).write_text(step.text, encoding="utf-8")
            continue
        words = [*programs[step.words[0]], *step.words[1:]]
        printed = _timed(python, words, folder, " ".join(step.words))[1]
        if missing := step.missing(printed):
            yield f"{' '.join(step.words)} does not print\n{missing}\nbut\n{printed}"


def wrong_adapter(python: Path, suite: Path, folder: Path) -> Iterator[str]:
    """Ask which adapter a suite with a harness of its own needs, run the suite with it, and yield what is wrong."""
    shutil.copy(suite, folder / "test_spawn.py")
    command = ["-m", "dist_testing.adopt", "--tests=3", "--", str(python), "-m", "pytest", "test_spawn.py"]
    shown = "python -m dist_testing.adopt --tests=3 -- python -m pytest test_spawn.py"
    code, printed = _timed(python, command, folder, shown)
    # 1: outcomes differ, because the suite's own harness passes what should fail.
    if code not in (0, 1) or "\n  -p dist_testing.adopt.spawn\n" not in printed:
        yield f"{shown} ended with {code}, and names no adapter:\n{printed}"
    code, printed = _timed(python, ["-m", "pytest", "-p", "dist_testing.adopt.spawn", "test_spawn.py"], folder)
    # Tests that fail, and faults that the suite's own harness does not see, are a part of the suite.
    if not re.search(r"^=+ [2-9] failed, \d\d passed.* in ", printed, re.MULTILINE):
        yield f"pytest -p dist_testing.adopt.spawn test_spawn.py ended with {code}:\n{printed}"
