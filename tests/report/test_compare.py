"""Two invocations: what is new, what is gone, and what is slower beyond the noise."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from dist_testing.core.ground.record import CaseRecord
from dist_testing.report.__main__ import main
from dist_testing.report.compare import compare, compare_lines
from dist_testing.report.gather import gather
from dist_testing.report.model import InvocationRecord, NotRun, Report, RunRecord
from tests.report.streams import Case, write_stream


def _report(cases: dict[str, CaseRecord]) -> Report:
    return Report((InvocationRecord("i"),), (RunRecord("//a:a", status="PASSED", cases=tuple(cases.values())),))


def _cases(count: int, seed: int = 0, *, seconds: float = 2.0, noise: float = 0.05) -> dict[str, CaseRecord]:
    chance = random.Random(seed)
    return {
        f"c{n}": CaseRecord(f"c{n}", "passed", duration_s=seconds * chance.lognormvariate(0, noise))
        for n in range(count)
    }


def test_files_of_pytest_may_have_any_name(tmp_path: Path) -> None:
    """If it fails, two runs of pytest have nothing in common, because each wrote a file of its own name."""
    cases = [Case("t.py::stays"), Case("t.py::goes"), Case("t.py::breaks")]
    before = gather([write_stream(tmp_path / "monday.jsonl.gz", cases)])
    cases = [Case("t.py::stays"), Case("t.py::comes"), Case("t.py::breaks", "failed", "m", "", 2, "failure", 1)]
    found = compare(before, gather([write_stream(tmp_path / "tuesday.jsonl.gz", cases)]))
    groups = {"Newly failing": "t.breaks", "Removed": "t.goes", "Added": "t.comes"}
    assert found.groups == {title: (("", name),) for title, name in groups.items()}
    assert "    t.goes" in list(compare_lines(found))
    # In folders with files of the same names, the names tell suites apart.
    for folder, names in (("old", ["gloo.jsonl"]), ("new", ["gloo.jsonl", "nccl.jsonl"])):
        for name in names:
            write_stream(tmp_path / folder / name, cases[:1])
    found = compare(gather([tmp_path / "old"]), gather([tmp_path / "new"]))
    assert found.groups == {"Added": (("nccl.jsonl", ""),)}


def test_each_kind_of_difference_is_found() -> None:
    """If it fails, a test that was removed or muted goes unseen."""
    old = {name: CaseRecord(name, "passed") for name in ("same", "fails", "skips", "goes")}
    old["mends"] = CaseRecord("mends", "failed")
    new = {
        "same": CaseRecord("same", "passed"),
        "fails": CaseRecord("fails", "failed"),
        "skips": CaseRecord("skips", "skipped", message="why"),
        "mends": CaseRecord("mends", "passed"),
        "comes": CaseRecord("comes", "passed"),
        "comes_red": CaseRecord("comes_red", "error"),
    }
    before, after = _report(old), _report(new)
    before = replace(before, runs=(*before.runs, RunRecord("//b:gone"), RunRecord("//c:c"), RunRecord("//d:d")))
    after = replace(
        after,
        runs=(*after.runs, RunRecord("//new:new"), RunRecord("//c:c", cached="remote")),
        targets=("//d:d",),
        not_run=(NotRun("not built", "//d:d", "", "why"),),
    )
    found = compare(before, after)
    assert found.groups == {
        "Newly failing": (("//a:a", "comes_red"), ("//a:a", "fails")),
        "Newly skipped": (("//a:a", "skips"),),
        "Removed": (("//a:a", "goes"), ("//b:gone", "")),
        "Mended": (("//a:a", "mends"),),
        "Added": (("//a:a", "comes"), ("//a:a", "comes_red"), ("//new:new", "")),
        "Newly from a cache": (("//c:c", ""),),
    }
    assert list(compare_lines(found))[:3] == ["Newly failing: 2", "    //a:a comes_red", "    //a:a fails"]
    assert list(compare_lines(compare(_report({}), _report({})))) == ["no difference"]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_noise_and_another_machine_are_not_slower(seed: int, factor: float) -> None:
    """If it fails, every comparison lists half of the cases."""
    found = compare(_report(_cases(200, seed)), _report(_cases(200, seed + 100, seconds=2.0 * factor)))
    assert found.slower == ()
    assert found.shift == pytest.approx(factor, rel=0.05)


@pytest.mark.parametrize(
    ("before", "after", "slower"),
    [
        (_cases(200), {**_cases(200, seed=7), "c9": CaseRecord("c9", "passed", duration_s=6.0)}, ["c9"]),
        (
            _cases(200, noise=0.2),
            {**_cases(200, 7, noise=0.2), "c9": CaseRecord("c9", "passed", duration_s=6.0)},
            ["c9"],
        ),
        # Two runs of few cases always differ.
        (_cases(3), _cases(3, seconds=3.0), []),
        (_cases(3), _cases(3, seconds=5.0), ["c0", "c1", "c2"]),
    ],
)
def test_a_case_that_is_slower_is_found(
    before: dict[str, CaseRecord], after: dict[str, CaseRecord], slower: list[str]
) -> None:
    """If it fails, a case that takes three times as long goes unseen, or noise is a difference."""
    assert sorted(one.case for one in compare(_report(before), _report(after)).slower) == slower


def test_the_command_shows_the_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If it fails, --compare says nothing on the page."""
    before = write_stream(tmp_path / "a" / "e.jsonl", [Case("t.py::x")], target="//a:a")
    after = write_stream(tmp_path / "b" / "e.jsonl", [Case("t.py::x", "failed", "m")], target="//a:a")
    out = tmp_path / "p.html"
    assert main([str(after), f"--compare={before}", f"--out={out}"]) == 0
    assert "Newly failing: 1\n    //a:a t.x" in capsys.readouterr().out
    assert "Newly failing (1)" in out.read_text(encoding="utf-8")
    # What is missing before looks like a difference.
    before.write_text("".join(before.read_text(encoding="utf-8").splitlines(keepends=True)[:-1]), encoding="utf-8")
    assert main([str(after), f"--compare={before}", f"--out={out}"]) == 0
    for shown in (capsys.readouterr().err, out.read_text(encoding="utf-8")):
        assert f"before: {before}" in shown
    assert main([str(after), f"--compare={tmp_path / 'no'}", f"--out={out}"]) == 2
    assert "there is no such file" in capsys.readouterr().err
