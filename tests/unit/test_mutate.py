"""The program that changes code in one place at a time."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from tests.support.mutate import Choice, main, mutants_of
from tests.support.mutate import _Changed as Changed
from tests.support.mutated import AREAS


def _changed(code: str, *, texts: bool = True) -> set[str]:
    return {ast.unparse(mutant) for _, _, mutant in mutants_of(ast.parse(code), texts=texts)}


@pytest.mark.parametrize(
    ("code", "changed"),
    [
        ("x = a + 1", {"x = a - 1", "x = a + 2"}),
        ("x = a < b <= c", {"x = a <= b <= c", "x = a < b < c"}),
        ("x = not a", {"x = a"}),
        ("x = a if b else c", {"x = a if not b else c"}),
        ("x = min(a, key=f)", {"x = max(a, key=f)"}),
        ("x = [a for a in b if c]", {"x = [a for a in b]"}),
        ("a.b = c", {"pass"}),
        ("f(a)", {"pass"}),
        ("raise a", {"pass"}),
        ("while a:\n    break", {"while not a:\n    break", "while a:\n    continue"}),
        ("def f():\n    return a", {"def f():\n    return None"}),
        ("def f():\n    return None", set()),
        # What only types, readers and mypy see.
        ("def f(a: 'int' = b) -> 'str':\n    '''Text.'''", set()),
        ("@f(1)\ndef g():\n    pass", set()),
        ("T = TypeVar('T', bound=a)", set()),
        ("if TYPE_CHECKING:\n    f()", set()),
    ],
)
def test_each_place_changes_once(code: str, changed: set[str]) -> None:
    """If this fails, a kind of mistake is never planted, or a score counts changes that mean nothing."""
    assert _changed(code) == changed


def test_messages_change_only_if_they_should() -> None:
    """If this fails, hundreds of changed sentences hide the decisions that no test notices."""
    code = "x = f('name', 'two words')"
    assert _changed(code, texts=False) == {"x = f('namex!', 'two words')"}
    assert _changed(code) == {"x = f('namex!', 'two words')", "x = f('name', 'two wordsx!')"}


def test_a_sample_is_the_same_for_the_same_seed() -> None:
    """If this fails, a score cannot be repeated."""
    tree = ast.parse("\n".join(f"x{number} = a + {number}" for number in range(12)))

    def chosen(sample: int = 0, seed: int = 0) -> list[tuple[int, str]]:
        return [mutant[:2] for mutant in Choice(sample=sample, seed=seed).of("m", tree)]

    assert len(chosen()) == 24
    assert chosen(sample=5) == chosen(sample=5) != chosen(sample=5, seed=1)
    assert chosen(sample=5) == sorted(chosen(sample=5), key=lambda mutant: mutant[0])
    assert chosen(sample=50) == chosen()


def test_changes_that_lived_can_run_again() -> None:
    """If this fails, the effect of a new test costs a whole run."""
    tree = ast.parse("x = a + 1\ny = a + 1")
    again = frozenset({"m:2: Add lives", "other:1: 1 lives", "m: 3 of 4 changes are noticed."})
    assert [mutant[:2] for mutant in Choice(again=again).of("m", tree)] == [(2, "Add")]


def test_a_changed_module_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, the tests run with the code of the file, and every change lives."""
    path = tmp_path / "module_of_a_test.py"
    path.write_text("CONSTANT = 1\nclass Thing:\n    def __init__(self):\n        self.value = CONSTANT\n")
    monkeypatch.syspath_prepend(tmp_path)
    tree = ast.parse(path.read_text().replace("= 1", "= 2"))
    monkeypatch.setattr(sys, "meta_path", [Changed(path.stem, path, tree), *sys.meta_path])
    try:
        module = importlib.import_module(path.stem)
        assert module.Thing().value == 2
        assert module.__file__ == str(path)
    finally:
        sys.modules.pop(path.stem, None)


def test_the_table_names_modules(capsys: pytest.CaptureFixture[str]) -> None:
    """If this fails, a module that was renamed is no longer checked."""
    for modules in AREAS.values():
        for name in modules:
            assert importlib.util.find_spec(f"dist_testing.{name}") is not None
    assert main(["no.such_module"]) == 2
    assert "no.such_module=tests/unit/test_x.py" in capsys.readouterr().err
