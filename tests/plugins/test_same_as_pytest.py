"""docs/plugins.md: a suite on ranks has the results of plain pytest, with pytest's options and with other plug-ins."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest

from tests.support.children import Ended, run_pytest, write_file
from tests.support.starter import Starter

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

def test_adds_xfail(WORLD, request):
    request.applymarker(pytest.mark.xfail(reason="added"))
    assert 1 == 2

def test_adds_xfail_strict(WORLD, request):
    request.applymarker(pytest.mark.xfail(strict=True, reason="added"))

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
_OPTIONS = (
    "",
    "-x",
    "--maxfail=2",
    "-k parameter",
    "-m slow",
    "--durations=3 --durations-min=0",
    "--setup-show",
    "--setup-only",
    "--setup-plan",
    "--collect-only",
    "-v",
    "--tb=short",
    "-s",
    "-l",
    "-W error",
    "--runxfail",
    "--deselect=test_suite.py::test_fails",
    "--import-mode=importlib",
    "--strict-markers",
    "--junitxml=results.xml",
)
# Options of pytest that act on the run before.
_SECOND_RUNS = ("--lf", "--ff", "--sw")
# Distribution, what `-p` needs, and options with which the plug-in does something.
_PLUGINS = (
    ("flaky", ["flaky.flaky_pytest_plugin"], "--force-flaky --max-runs=2"),
    ("pytest-html", ["pytest_html.plugin", "pytest_metadata.plugin"], "--html=report.html"),
    ("pytest-json-report", ["pytest_jsonreport.plugin"], "--json-report"),
    ("pytest-randomly", ["pytest_randomly"], "--randomly-seed=1"),
    ("pytest-rerunfailures", ["pytest_rerunfailures"], "--reruns=1"),
    ("pytest-rerunfailures", ["pytest_rerunfailures"], "--reruns=1 --only-rerun=AssertionError"),
    ("pytest-retry", ["pytest_retry.retry_plugin"], "--retries=1"),
    ("pytest-timeout", ["pytest_timeout"], "--timeout=300"),
    ("pytest-xdist", ["xdist.plugin"], "-n2"),
)
# Where an editor shows something else: fixtures are a part of the call, and plain pytest reports each sub-test. VS Code
# takes the first of these reports for the test's.
_DIFFERING = {"test_broken_setup", "test_broken_teardown", "test_broken_teardown_teardown", "test_subtests"}


def _write_suite(folder: Path, *, is_ours: bool) -> None:
    """Write the suite and its settings."""
    text = _SUITE.replace("MARK", _MARK if is_ours else "")
    text = text.replace("WORLD", "world") if is_ours else re.sub(r"(, )?WORLD(?(1)|(, )?)", "", text)
    folder.mkdir()
    (folder / "test_suite.py").write_text(text, encoding="utf-8")
    (folder / "conftest.py").write_text(_CONFTEST, encoding="utf-8")


def _outcomes(log: str) -> list[tuple[str, str]]:
    """Read the summary of `-rA`: outcome and test, sorted; skips by their number."""
    return sorted((match[1], match[3] or f"{match[2]} test(s)") for match in _OUTCOME.finditer(log))


def _as_on_ranks(plain: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return what the summary of plain pytest would be if the fixtures were a part of the call."""
    return sorted(found for one in plain if (found := _ON_RANKS.get(one, one)) is not None)


def _run(starter: Starter, folder: Path, plugins: Sequence[str], options: str) -> Ended:
    named = [option for plugin in plugins for option in ("-p", plugin)]
    return run_pytest(starter, folder, "-rA", *named, *options.split(), env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})


def _both(starter: Starter, tmp_path: Path, plugins: Sequence[str], *runs: str) -> tuple[Ended, Ended]:
    """Run the suite without and with the library's marker, and return the ends of the last run of each."""
    ends = []
    for is_ours in (False, True):
        folder = tmp_path / ("ours" if is_ours else "plain")
        _write_suite(folder, is_ours=is_ours)
        ends.append([_run(starter, folder, plugins, options) for options in runs][-1])
    return ends[0], ends[1]


def _check(plain: Ended, ours: Ended, options: str) -> None:
    # Without a call there is nothing that runs on ranks.
    has_calls = "--setup-" not in options or options == "--setup-show"
    found = _outcomes(plain.log)
    assert _outcomes(ours.log) == (_as_on_ranks(found) if has_calls else found), f"{plain.log}\n{ours.log}"
    assert ours.code == plain.code


@pytest.mark.parametrize("options", _OPTIONS)
def test_an_option_means_the_same(starter: Starter, tmp_path: Path, options: str) -> None:
    """If this fails, an option of pytest does something else on tests that run on ranks."""
    plain, ours = _both(starter, tmp_path, (), options)
    assert _outcomes(plain.log) or options == "--collect-only", plain.log
    _check(plain, ours, options)


@pytest.mark.parametrize("options", _SECOND_RUNS)
def test_an_option_finds_the_run_before(starter: Starter, tmp_path: Path, options: str) -> None:
    """If this fails, pytest's cache has other tests than those that failed."""
    plain, ours = _both(starter, tmp_path, (), options, options)
    _check(plain, ours, options)


@pytest.mark.parametrize(("name", "plugins", "options"), _PLUGINS)
def test_a_plugin_does_the_same(starter: Starter, tmp_path: Path, name: str, plugins: list[str], options: str) -> None:
    """If this fails, a plug-in does something else with tests that run on ranks."""
    metadata.version(name)
    plain, ours = _both(starter, tmp_path, plugins, options)
    assert _outcomes(plain.log), plain.log
    _check(plain, ours, options)
    if name == "pytest-json-report":
        written = [json.loads((tmp_path / kind / ".report.json").read_text()) for kind in ("plain", "ours")]
        (text,) = [test["call"]["longrepr"] for test in written[1]["tests"] if test["nodeid"].endswith("::test_fails")]
        assert re.search(r"rank [01] of 2 failed first", text)
        assert [len(one["tests"]) for one in written] == [22, 22]
    if name == "pytest-html":
        assert re.search(r"rank [01] of 2 failed first", (tmp_path / "ours" / "report.html").read_text())


def test_pycharm_sees_the_report(starter: Starter, tmp_path: Path) -> None:
    """If this fails, PyCharm's pane of tests lacks a test, or the text of its failure."""
    plain, ours = _both(starter, tmp_path, ["teamcity.pytest_plugin"], "--teamcity")
    said = [re.findall(r"##teamcity\[(test\w+) .*?name='(.*?)'", ended.log) for ended in (plain, ours)]
    alike = [[one for one in every if one[1].partition(".")[2] not in _DIFFERING] for every in said]
    assert alike[1] == alike[0], ours.log
    (failure,) = re.findall(r"##teamcity\[testFailed .*name='test_suite\.test_fails'.*", ours.log)
    assert re.search(r"rank [01] raised AssertionError", failure)
    assert re.search(r"rank [01] of 2 failed first", failure)


# What the plug-in of VS Code's Python extension reads of a test: python_files/vscode_pytest of microsoft/vscode-python.
_VSCODE = """
    import json
    import pytest

    _seen = {}

    def pytest_exception_interact(node, call, report):
        kind = "failure" if call.excinfo.typename == "AssertionError" else "error"
        _seen.setdefault(report.nodeid, [kind, report.longreprtext])

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(report, config):
        if report.when == "call":
            kind = "success" if report.passed else "failure" if report.failed else "skipped"
            _seen.setdefault(report.nodeid, [kind, report.longreprtext if report.failed else ""])

    def pytest_sessionfinish(session):
        (session.config.rootpath / "seen.json").write_text(json.dumps(_seen))
"""


def test_vscode_sees_the_report(starter: Starter, tmp_path: Path) -> None:
    """If this fails, VS Code's pane of tests shows another icon, or not the report, or a rank writes into the pane."""
    for is_ours in (False, True):
        folder = tmp_path / ("ours" if is_ours else "plain")
        _write_suite(folder, is_ours=is_ours)
        write_file(folder, "vscode_pytest.py", _VSCODE)
        _run(starter, folder, ["vscode_pytest"], "")
    plain, ours = (json.loads((tmp_path / kind / "seen.json").read_text()) for kind in ("plain", "ours"))
    assert ours.keys() == plain.keys()
    differing = {nodeid.partition("::")[2] for nodeid in plain if ours[nodeid][0] != plain[nodeid][0]}
    assert differing <= _DIFFERING, (plain, ours)
    kind, text = ours["test_suite.py::test_fails"]
    assert kind == "failure"
    assert re.search(r"rank [01] raised AssertionError", text)
    assert re.search(r"rank [01] of 2 failed first", text)
