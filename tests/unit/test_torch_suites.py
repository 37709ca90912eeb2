"""The page that compares our suites with torch's: each test of ours that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs" / "evidence" / "torch_suites.md"
# Heading of a table to the files of its tests.
_FILES = {
    "The debug wrapper": ["tests/test_pg_wrapper.py"],
    "The object-style API": ["tests/test_dist2.py"],
    "Groups of threads": [
        "tests/test_multi_threaded_pg.py",
        "tests/multi_threaded_pg_bodies.py",
        "tests/process/test_thread_autograd.py",
        "tools/gpu/checklist_cases.py",
    ],
}


def _functions(files: list[str]) -> set[str]:
    trees = [ast.parse((_ROOT / file).read_text(encoding="utf-8")) for file in files]
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("heading", _FILES)
def test_every_named_test_exists(heading: str) -> None:
    """If this fails, the page claims a check that was renamed or removed."""
    text = _PAGE.read_text(encoding="utf-8")
    (section,) = (part for part in text.split("\n## ") if part.startswith(heading))
    lines = section.splitlines()
    rows = [line.split("|")[1:-1] for line in lines if line.startswith("| ")][1:]
    counted = re.match(r".*, (\d+) scenarios\n", section)
    assert counted is not None
    assert len(rows) == int(counted[1]) == len({theirs for theirs, *_ in rows})
    assert f"{counted[1]} of {counted[1]}" in text
    assert all(re.search("`.+`", ours) for _, ours, _ in rows)
    # The text around the table names tests of ours, too; the first cells name torch's.
    texts = [*(cell for _, *ours in rows for cell in ours), *(line for line in lines if not line.startswith("|"))]
    named = {name for text in texts for name in re.findall(r"`([a-z]\w*[a-z])`", text)}
    assert named <= _functions(_FILES[heading])
