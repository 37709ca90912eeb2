"""One small suite, once with the library's marker and once without, and how its results may differ.

docs/plugins.md says which differences there are, and why.
"""

from __future__ import annotations

import re
from pathlib import Path

# A test that runs on ranks names the fixture `world`; else the suite is the same.
_SUITE = """
import warnings

import pytest

MARK

@pytest.fixture
def broken():
    raise RuntimeError("in the setup")

@pytest.fixture
def late():
    yield
    raise RuntimeError("in the teardown")

@pytest.fixture(scope="module")
def shared():
    return [1]

def test_passes(WORLD): ...

def test_fails(WORLD):
    assert 1 == 2

@pytest.mark.skip(reason="by a mark")
def test_skip_mark(WORLD):
    raise AssertionError

@pytest.mark.skipif("True", reason="by a text")
def test_skipif(WORLD):
    raise AssertionError

def test_skips(WORLD):
    pytest.skip("inside")

@pytest.mark.xfail(reason="known")
def test_xfails(WORLD):
    assert 1 == 2

@pytest.mark.xfail
def test_xpasses(WORLD): ...

@pytest.mark.xfail(strict=True, reason="strict")
def test_xpasses_strict(WORLD): ...

@pytest.mark.xfail(raises=ValueError)
def test_raises_as_expected(WORLD):
    raise ValueError("as expected")

@pytest.mark.xfail(raises=ValueError)
def test_raises_another(WORLD):
    raise KeyError("another")

def test_calls_xfail(WORLD):
    pytest.xfail("here")

def test_broken_setup(WORLD, broken): ...

def test_broken_teardown(WORLD, late): ...

@pytest.mark.parametrize("number", [1, 2])
def test_parameter(WORLD, number, shared):
    assert number in [*shared, 2]

class TestGroup:
    def test_method(self, WORLD): ...

    def test_prints(self, WORLD, capsys):
        print("hello")
        assert capsys.readouterr().out == "hello\\n"

def test_warns(WORLD):
    warnings.warn("careful")

def test_subtests(WORLD, subtests):
    for number in range(3):
        with subtests.test(msg="part", number=number):
            assert number != 1

@pytest.mark.slow
def test_slow(WORLD): ...
"""
_CONFTEST = """
def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes long")
"""
_MARK = "pytestmark = pytest.mark.distributed(world_size=2)"
_OUTCOME = re.compile(
    r"^(PASSED|FAILED|ERROR|XFAIL|XPASS|SKIPPED|RERUN) (?:\[(\d+)\] )?\S*test_suite\.py(?:::(\S+)|:\d+)", re.MULTILINE
)
# Fixtures of a marked test are set up and torn down on the ranks, inside its call. So an error there is a failure.
_ON_RANKS = {
    ("ERROR", "test_broken_setup"): ("FAILED", "test_broken_setup"),
    ("PASSED", "test_broken_teardown"): None,
    ("ERROR", "test_broken_teardown"): ("FAILED", "test_broken_teardown"),
}

Outcome = tuple[str, str]


def write_suite(folder: Path, *, is_ours: bool) -> None:
    """Write the suite and its settings."""
    text = _SUITE.replace("MARK", _MARK if is_ours else "")
    text = text.replace("WORLD", "world") if is_ours else re.sub(r"(, )?WORLD(?(1)|(, )?)", "", text)
    folder.mkdir()
    (folder / "test_suite.py").write_text(text, encoding="utf-8")
    (folder / "conftest.py").write_text(_CONFTEST, encoding="utf-8")


def outcomes(log: str) -> list[Outcome]:
    """Read the summary of `-rA`: outcome and test, sorted; skips by their number."""
    return sorted((match[1], match[3] or f"{match[2]} test(s)") for match in _OUTCOME.finditer(log))


def as_on_ranks(plain: list[Outcome]) -> list[Outcome]:
    """Return what the summary of plain pytest would be if the fixtures were a part of the call."""
    return sorted(found for one in plain if (found := _ON_RANKS.get(one, one)) is not None)
