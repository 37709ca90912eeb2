"""The tutorial and README.md: each command prints what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.children import write_file
from tests.support.page_steps import PageCommand, PageFile, page_steps
from tests.support.starter import Starter

_ROOT = Path(__file__).parents[2]
_PROGRAMS = {
    "pytest": ("-m", "pytest"),
    # A name server may not know the name of this machine.
    "torchrun": ("-m", "torch.distributed.run", "--local-addr=127.0.0.1"),
}
# As in a terminal: pytest does not shorten lines in CI.
_ENV = {"COLUMNS": "80", "CI": None, "BUILD_NUMBER": None}
# The plugin of this checkout, in place of an installed one.
_SETTINGS = "[pytest]\naddopts = -p dist_testing.core.pytest.plugin\n"


@pytest.mark.parametrize(
    ("page", "programs"),
    [("docs/tutorial.md", {"pytest", "torchrun"}), ("README.md", {"pytest"})],
    ids=["tutorial", "readme"],
)
def test_each_command_prints_what_the_page_shows(
    page: str, programs: set[str], starter: Starter, tmp_path: Path
) -> None:
    """If this fails, the first thing that a new user tries does not work, or looks different from the page."""
    write_file(tmp_path, "pytest.ini", _SETTINGS)
    ran = []
    for step in page_steps(_ROOT / page):
        if isinstance(step, PageFile):
            write_file(tmp_path, step.name, step.text)
            continue
        program, *arguments = step.words
        child = starter.start([*_PROGRAMS[program], *arguments], tmp_path, env=_ENV)
        child.wait()
        assert not step.missing(child.log), f"{step.words}: {step.missing(child.log)}\nis not in\n{child.log}"
        ran.append(program)
    assert set(ran) == programs


def test_another_output_is_noticed() -> None:
    """If this fails, the page may show anything."""
    command = PageCommand(("pytest",), "...\na 1\nb\n...\n==== 2 passed in 1.4s ====\n")
    printed = "first\na 1\nb\nmore\n=== 2 passed in 12.25s ===\n"
    assert command.missing(printed) == ""
    assert command.missing(printed.replace("a 1", "a 2")) == "a 1\nb"
    assert command.missing(printed.replace("a 1\n", "a 1\nbetween\n")) == "a 1\nb"
    assert command.missing(printed.replace("2 passed", "3 passed")) == "=== 2 passed in TIME ==="
