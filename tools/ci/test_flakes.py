"""The command that runs targets until a claim about their flakiness can be made."""

from __future__ import annotations

import contextlib
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import flakes
import pytest

_BAZEL = f"""#!{sys.executable}
# Stands in for Bazel: each run of `//x:y` writes a test.xml; run numbers in BAD fail, counted over all invocations.
import json, pathlib, sys
here = pathlib.Path(__file__).parent
bad = json.loads((here / "bad.json").read_text())
(here / "calls").open("a").write(" ".join(sys.argv[1:]) + chr(10))
value = lambda name: [one.partition("=")[2] for one in sys.argv if one.startswith(name + "=")][-1]
done = int((here / "done").read_text()) if (here / "done").exists() else 0
events = []
for run in range(1, int(value("--runs_per_test")) + 1):
    failed = done + run in bad
    xml = here / f"run_{{run}}.xml"
    inner = '<failure message="boom"/>' if failed else ""
    xml.write_text(f'<testsuite name="//x:y"><testcase classname="t" name="x">{{inner}}</testcase></testsuite>')
    output = [{{"name": "test.xml", "uri": xml.as_uri()}}]
    result = {{"status": "FAILED" if failed else "PASSED", "testActionOutput": output}}
    events.append({{"id": {{"testResult": {{"label": "//x:y", "run": run}}}}, "testResult": result}})
(here / "done").write_text(str(done + run))
events.append({{"id": {{"progress": {{}}}}, "lastMessage": True}})
pathlib.Path(value("--build_event_json_file")).write_text("".join(json.dumps(one) + chr(10) for one in events))
sys.exit(int((here / "status").read_text()) if (here / "status").exists() else 3 if bad else 0)
"""

Run = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command with a stand-in for Bazel, of which some runs fail."""
    monkeypatch.setenv("BUILD_WORKSPACE_DIRECTORY", str(tmp_path))
    program = tmp_path / "bazelw"
    program.write_text(_BAZEL, encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def run(*arguments: str, bad: tuple[int, ...] = (), status: int | None = None) -> int:
        (tmp_path / "bad.json").write_text(str(list(bad)), encoding="utf-8")
        if status is not None:
            (tmp_path / "status").write_text(str(status), encoding="utf-8")
        return flakes.main(arguments)

    return run


@pytest.mark.parametrize(
    ("arguments", "bad", "expected", "calls", "said"),
    [
        (["--runs=1000", "--batch=150"], (), 0, 3, "below 1.0 %  //x:y t.x: 0 of 450 failed (95 % confidence)"),
        (["--runs=20", "--rate=5%"], (), 0, 1, "0 of 20 failed; 53 more clean runs to claim below 5.0 %"),
        (["--runs=100", "--batch=50"], (7, 60), 1, 1, "FLAKY  //x:y t.x: 1 of 50 failed"),
        (["--runs=100", "--batch=50"], (7, 60), 1, 1, "flakes: 50 runs, 1 cases, 1 failed at least once"),
        (["--runs=5"], (1, 2, 3, 4, 5), 1, 1, "BROKEN  //x:y t.x: failed in all of 5 runs"),
    ],
    ids=["claim", "too few", "flaky", "count", "broken"],
)
def test_runs_go_on_until_a_claim_can_be_made(
    run: Run,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    bad: tuple[int, ...],
    expected: int,
    calls: int,
    said: str,
) -> None:
    """If it fails, the command runs for hours, claims too early, or a flaky test passes as a good one."""
    assert run(*arguments, "//x:y", bad=bad) == expected
    # A number and its unit stay on one line.
    assert said in capsys.readouterr().out.replace("\N{NO-BREAK SPACE}", " ")
    made = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    assert len(made) == calls
    assert made[0].startswith("test //x:y --keep_going --flaky_test_attempts=1 --cache_test_results=no")


@pytest.mark.parametrize("target", ["//x:y", "--target_pattern_file=x"])
def test_a_failed_build_ends_with_bazels_status(run: Run, capsys: pytest.CaptureFixture[str], target: str) -> None:
    """If it fails, a build error looks like clean runs, or a file of targets is no target."""
    assert run("--runs=5", target, status=1) == 1
    assert "Bazel's exit status is 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--runs=5"], "no target is named"), (["--runs=0", "//x:y"], "from 1 to"), (["--rate=2", "//x:y"], "is no rate")],
)
def test_wrong_usage_is_an_error(run: Run, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """If it fails, a typing error starts thousands of tests."""
    with contextlib.suppress(SystemExit):
        assert run(*arguments) == 2
    assert says in capsys.readouterr().err
