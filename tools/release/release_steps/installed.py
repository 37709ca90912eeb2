"""Installs a wheel into a fresh environment, and uses it as a stranger does: no file of the repository is in sight."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from release_steps.commands import output_of, run
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


def installed_problems(wheel: Path, version: str, page: Path, folder: Path, python: Path) -> Iterator[str]:
    """Install a wheel with pip, and yield what a stranger would find wrong.

    Args:
        wheel: The wheel.
        version: Its version.
        page: The tutorial, whose commands are run.
        folder: An empty folder outside the repository.
        python: Interpreter of a fresh environment.
    """
    before = run([python, "-c", "import torch; print(torch.__file__)"], folder)[1].strip()
    output_of([python, "-m", "pip", "install", "--quiet", wheel], folder)
    facts = json.loads(output_of([python, "-c", _FACTS], folder).splitlines()[-1])
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
    yield from _differing_output(python, page, folder)


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
        printed = run([python, *programs[step.words[0]], *step.words[1:]], folder)[1]
        if missing := step.missing(printed):
            yield f"{' '.join(step.words)} does not print\n{missing}\nbut\n{printed}"
