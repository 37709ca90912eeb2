"""The code of the pages for users runs: tests on ranks, scripts, and conftest files. Commands and YAML are parsed.

`tools/lint/blocks.py` says which blocks have a test of their own, and checks all others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.children import write_file
from tests.support.starter import Starter

_ROOT = Path(__file__).parents[2]
_PAGES = sorted((*(_ROOT / "docs").glob("*.md"), _ROOT / "README.md"))
# With a comment above it, a block is a file of another test, or says why it is not run.
_BLOCK = re.compile(r"(?<!-->\n)^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"# (\w+\.py)\n")
# What the pages do not repeat.
_IMPORTS = """
import os, re, signal, unittest
import pytest, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import dist_testing
from dist_testing import start_processes
from dist_testing.services import Service
"""
_SETTINGS = "[pytest]\naddopts = -p dist_testing.core.pytest.plugin --strict-markers\n"
# Reads the options, and does not begin a session: some need a terminal, or files.
_PARSE = """
import pathlib, shlex, sys
import pytest
from _pytest.config import _prepareconfig

wrong = []
for line in pathlib.Path("commands").read_text().splitlines():
    try:
        _prepareconfig(shlex.split(line))
    except pytest.UsageError as error:
        wrong.append(f"pytest {line}: {error}")
sys.exit("\\n".join(wrong) or 0)
"""
_COMMAND = re.compile(r"\bpytest(?! \() (.*?)(?: +#.*)?$", re.MULTILINE)
# Several scripts in one process, each as a main program.
_RUN_ALL = "import runpy, sys; [runpy.run_path(path, run_name='__main__') for path in sys.argv[1:]]"


def _blocks(language: str) -> Iterator[tuple[str, str]]:
    """Yield a name and the text of each block without a comment above it."""
    for page in _PAGES:
        for number, (kind, text) in enumerate(_BLOCK.findall(page.read_text(encoding="utf-8"))):
            if kind == language:
                yield f"{page.stem}_{number}", text


def test_tests_pass_and_scripts_end_without_an_error(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a user who copies an example from a page has a test that fails."""
    write_file(tmp_path, "pytest.ini", _SETTINGS)
    tests: list[str] = []
    scripts: list[str] = []
    for name, text in _blocks("python"):
        given = _NAME.match(text)
        is_test = re.search(r"^ *def test_", text, re.MULTILINE)
        file = given[1] if given else f"test_{name}.py" if is_test else f"{name}.py"
        write_file(tmp_path, file, _IMPORTS + text)
        if not given:
            (tests if is_test else scripts).append(file)
    child = starter.start(["-m", "pytest", "-rA", "--dist-events=events.jsonl.gz", *tests], tmp_path)
    assert child.wait() == 0, child.log
    ran = re.findall(r"^(?:PASSED|SKIPPED) (?:\[\d+\] )?(test_\w+\.py)", child.log, re.MULTILINE)
    assert set(ran) == set(tests)
    write_file(tmp_path, "run_all.py", _RUN_ALL)
    child = starter.start(["run_all.py", *scripts], tmp_path)
    assert child.wait() == 0, child.log
    # docs/programs.md and docs/reports.md.
    assert "[tensor(3.), tensor(3.), tensor(3.), tensor(3.)]\n" in child.log
    assert "(0, 2, 3)\n" in child.log
    assert "\n1 call\n" in child.log
    assert re.search(r" passed \d", child.log)


def test_pytest_knows_the_options_of_each_command(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a user who copies a command has a usage error, or an adapter cannot be loaded."""
    shells = [text for language in ("sh", "console") for _, text in _blocks(language)]
    # The watch mode begins as soon as its option is read.
    commands = [line for text in shells for line in _COMMAND.findall(text) if "--dist-watch" not in line]
    assert len(commands) > 25
    write_file(tmp_path, "pytest.ini", _SETTINGS)
    write_file(tmp_path, "commands", "\n".join(commands))
    write_file(tmp_path, "parse.py", _PARSE)
    child = starter.start(["parse.py"], tmp_path)
    assert child.wait() == 0, child.log


def test_yaml_is_yaml() -> None:
    """If this fails, a service refuses a file that a user has copied."""
    yaml = pytest.importorskip("yaml", reason="PyYAML (requirements_unit.txt) is not installed")
    found = [list(yaml.safe_load_all(text)) for _, text in _blocks("yaml")]
    assert len(found) > 5
    assert all(isinstance(document, dict) for documents in found for document in documents)
