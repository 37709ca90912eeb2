"""The quarantine file: its strict reader, which cases a row names, its conditions, and the removal of rows."""

from __future__ import annotations

import functools
import io
import os
import re
import signal
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from dist_testing.core.events.event import CaseEnded, CaseRecorded, RunEnded, run_started
from dist_testing.core.ground.backends import default_backend
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.record import CaseRecord
from dist_testing.core.ground.spec import Spec
from dist_testing.event_file import EventFile
from dist_testing.quarantine import __main__ as command
from dist_testing.quarantine.rows import Conditions, RowFinder, is_version_in, read_rows, rows_in, without_rows
from dist_testing.report.model import InvocationRecord, Report, RunRecord
from tests.support.results import refusal

_FILE = Path("quarantine.toml")
_ROW = """
[[row]]
cases = ["test_a.py::test_x"]
mode = "run"
reason = "flaky"
link = "https://example.org/1"
owner = "comms"
expires = 2999-01-31
"""


def _file(*changes: tuple[str, str], rows: int = 1) -> str:
    text = "schema = 1\n" + _ROW * rows
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return text


def test_a_row_has_all_that_the_file_says() -> None:
    """If this fails, a row applies where its author has excluded it."""
    more = 'torch = ">=2.14,<2.16"\nbackend = "nccl"\ngpu = "H100"\nworld_size = 4\nnodes = 2\n'
    (row,) = rows_in(_file() + more, _FILE)
    assert row.cases == ("test_a.py::test_x",)
    assert (row.mode, row.owner, row.expires) == ("run", "comms", date(2999, 1, 31))
    assert row.conditions == Conditions(">=2.14,<2.16", "nccl", "H100", 4, 2)
    # A case can have one reason on gloo and another one on nccl.
    rows = rows_in(_file() + 'backend = "gloo"\n' + _ROW + 'backend = "nccl"\n', _FILE)
    assert [row.conditions.backend for row in rows] == ["gloo", "nccl"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("schema = 1\n[[row]\n", "is not TOML"),
        ("[[row]]\n" * 1 + "a = " + "[" * 100_000, "is not TOML"),
        (_ROW, "schema = None; expected 1"),
        (_file(("schema = 1", "schema = 2")), "schema = 2; expected 1"),
        (_file(("schema = 1", "schema = true")), "schema = True; expected 1"),
        (_file(("[[row]]", "[[rows]]")), "the key 'rows'.\nThe quarantine file is strict"),
        ("schema = 1\nrow = 3\n", "no list of tables"),
        (_file(("owner", "owners")), "row 1 has the key 'owners'"),
        (_file(('owner = "comms"', "")), "row 1 lacks owner"),
        (_file(('owner = "comms"', 'owner = ""')), "row 1 has owner = ''"),
        (_file(('"flaky"', '"two\\nlines"')), r"row 1 has reason = 'two\nlines'"),
        (_file(('"flaky"', '"\\u001b[31m"')), "row 1 has reason = "),
        (_file(('"run"', '"warn"')), 'row 1 has mode = \'warn\'; expected "run" or "skip"'),
        (_file(('"run"', "[]")), "row 1 has mode = []"),
        (_file(("2999-01-31", '"2999-01-31"')), "row 1 has expires = '2999-01-31'; expected a date without quotes"),
        (_file(("2999-01-31", "2999-01-31T00:00:00")), "row 1 has expires = 2999-01-31 00:00:00"),
        (_file(("2999-01-31", "2999-02-31")), "is not TOML"),
        (_file(('["test_a.py::test_x"]', '"test_a.py::test_x"')), "row 1 has cases = 'test_a.py::test_x'"),
        (_file(('["test_a.py::test_x"]', "[]")), "row 1 has cases = []"),
        (_file(('["test_a', '["/test_a')), "row 1 has cases = ['/test_a"),
        (_file(('["test_a.py::test_x"]', '["test_a.py", "test_a.py"]')), "row 1 has a case twice"),
        (_file() + 'torch = "2.14"\n', "row 1 has torch = '2.14'; expected bounds of a version"),
        (_file() + "world_size = 0\n", "row 1 has world_size = 0; expected a number from 1"),
        (_file() + "nodes = true\n", "row 1 has nodes = True; expected a number from 1"),
        (_file(rows=2), "rows 1 and 2 are both for test_a.py::test_x"),
    ],
)
def test_a_wrong_file_is_an_error_of_three_lines(text: str, told: str) -> None:
    """If this fails, a typing error in the file silently lets a case gate, or lets every failure of it pass."""
    refused = refusal(lambda: rows_in(text, _FILE))
    assert told in refused
    assert str(_FILE) in refused.splitlines()[0]


def test_what_cannot_be_read_or_taken_apart_is_refused(tmp_path: Path) -> None:
    """If this fails, a wrong path means a run without the quarantine, or the command damages the file."""
    (tmp_path / "latin.toml").write_bytes(b"schema = 1 # \xe9")
    for path in (tmp_path / "missing.toml", tmp_path, tmp_path / "latin.toml"):
        assert "cannot be read" in refusal(functools.partial(read_rows, path))
    for text in (
        'schema = 1\nrow = [{cases=["a"], mode="run", reason="r", link="l", owner="o", expires=2020-01-31}]\n',
        _file(('"flaky"', '"""\\\n[[row]] # \\\n"""')),
    ):
        refusal(functools.partial(without_rows, text, _FILE, [1]))


@pytest.mark.parametrize(
    ("case", "nodeid", "fits"),
    [
        ("t/test_a.py", "t/test_a.py::C::test_x[1]", True),
        ("t/test_a.py::C", "t/test_a.py::C::test_x[1]", True),
        ("t/test_a.py::C::test_x", "t/test_a.py::C::test_x[1]", True),
        ("t/test_a.py::C::test_x[1]", "t/test_a.py::C::test_x[1]", True),
        ("t/test_a.py::C::test_x[1]", "t/test_a.py::C::test_x[11]", False),
        ("t/test_a.py::C::test_x", "t/test_a.py::C::test_xy", False),
        ("t", "t/test_a.py::test_x", False),
        ("t/*", "t/u/test_a.py::test_x", True),
        ("*::test_x[?]", "t/test_a.py::test_x[1]", True),
        ("*::test_x[?]", "t/test_a.py::test_x[12]", False),
        # Brackets are no set of characters, as in fnmatch.
        ("*::test_[xy]", "t/test_a.py::test_x", False),
        ("*::TEST_X", "t/test_a.py::test_x", False),
    ],
)
def test_a_row_names_cases_as_pytest_does(case: str, nodeid: str, fits: bool) -> None:
    """If this fails, a row takes the failures of another case out of the verdict."""
    rows = rows_in(_file(("test_a.py::test_x", case)), _FILE)
    assert bool([*RowFinder(rows).find(nodeid)]) == fits


@pytest.mark.parametrize(
    ("version", "bounds", "fits"),
    [
        ("2.14.0", ">=2.14,<2.16", True),
        ("2.15.0a0+cpu", ">=2.14, <2.16", True),
        ("2.16.0", ">=2.14,<2.16", False),
        ("2.9.1", ">=2.14", False),
        ("2.14.0+cu130", "==2.14", True),
        ("2.14.1", "!=2.14", True),
        ("2.14.1", "<=2.14", False),
        ("2.14", ">2.14", False),
    ],
)
def test_bounds_of_a_version(version: str, bounds: str, fits: bool) -> None:
    """If this fails, a row applies to a torch that has the bug repaired."""
    assert is_version_in(version, bounds) == fits


def test_conditions_say_what_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a row is silently not in force."""
    monkeypatch.setenv("DIST_TESTING_GPU_NODES", str(tmp_path))
    (tmp_path / "nvidia0").touch()
    place: dict[str, Any] = {"backend": "gloo", "world_size": 4, "nodes": 1}
    assert Conditions(">=2", "gloo", "simulated", 4, 1).unmet(**place) == ""
    assert Conditions(torch="<2").unmet(**place).endswith("and the row is for <2")
    assert Conditions(backend="nccl").unmet(**place) == "backend is gloo, and the row is for nccl"
    assert Conditions(world_size=2).unmet() == "world_size is unknown, and the row is for 2"
    assert Conditions(nodes=2).unmet(**place) == "nodes is 1, and the row is for 2"
    assert Conditions(gpu="sm_90").unmet(**place) == "this machine has no GPU sm_90"


_COMMENTED = """# The file of the team.
schema = 1  # the only one

# Of the first.
[[row]]
cases = ["test_a.py::test_x"] # one
mode = "run"
reason = "old"
link = "l"
owner = "o"
expires = 2020-01-31
# Still of the first.

# Of nobody.

[[row]]
cases = [
    "test_a.py::test_y",
]
mode = "run"
reason = \"\"\"\\
    # no comment\"\"\"
link = "l"
owner = "o"
expires = 2999-01-31

# Of the last.
[[ row ]]
cases = ["test_a.py::test_z"]
mode = "skip"
reason = "old"
link = "l"
owner = "o"
expires = 2020-01-31
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_prune_keeps_all_other_text(tmp_path: Path, capsys: pytest.CaptureFixture[str], end: str) -> None:
    """If this fails, the command loses what people have written about rows that stay."""
    file = tmp_path / "quarantine.toml"
    file.write_bytes(_COMMENTED.replace("\n", end).encode())
    assert command.main(["prune", str(file)]) == 0
    first, last = _COMMENTED.index("# Of the first."), _COMMENTED.index("\n# Of the last.")
    expected = _COMMENTED[:first] + _COMMENTED[_COMMENTED.index("# Of nobody.") : last]
    assert file.read_bytes().decode() == expected.replace("\n", end)
    assert [line.split(" (")[0] for line in capsys.readouterr().out.splitlines()] == [
        "removed: quarantine.toml: row 1",
        "removed: quarantine.toml: row 3",
    ]
    assert command.main(["prune", str(file)]) == 0
    assert "no row has expired" in capsys.readouterr().out


def _write_runs(folder: Path, statuses: str, isolation: str = "fork") -> list[str]:
    """Write an event file for each letter: p for a pass, f for a failure, q for one that is quarantined."""
    names = []
    for number, letter in enumerate(statuses):
        path = folder / f"{number:03}.jsonl"
        file = EventFile(path)
        file(run_started(Spec("", default_backend(), (2,), "fork")))
        quarantined = (("quarantine", "failed"),) if letter == "q" else ()
        record = CaseRecord(
            "test_a.test_x",
            {"p": "passed", "f": "failed", "q": "xfailed"}[letter],  # type: ignore[arg-type]
            "test_a.py::test_x",
            world_size=2,
            isolation=isolation,
            cause="" if letter == "p" else "crash",
            properties=quarantined,
        )
        file(CaseRecorded(float(number), record))
        file(CaseEnded(float(number), record.nodeid))
        file(RunEnded(float(number), 0))
        file.close()
        names.append(str(path))
    return names


def test_propose_writes_a_row_with_its_statistics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If this fails, a team quarantines a case by feeling, or the file refuses the row that it was told to add."""
    runs = _write_runs(tmp_path, "pppppppqpf")
    assert command.main(["propose", "--same-inputs", "--days", "7", *runs]) == 0
    text = capsys.readouterr().out
    assert "# 2 of 10 runs failed, 5.7 % to 51 % (95 %): 2 x crash" in text
    with pytest.raises(UsageError, match="row 1 has link = ''"):
        rows_in(text, _FILE)
    (row,) = rows_in(text.replace('link = ""', 'link = "l"').replace('owner = ""', 'owner = "o"'), _FILE)
    assert row.cases == ("test_a.py::test_x",)
    assert row.reason == "flaky: 2 of 10 runs failed, 5.7 % to 51 % (95 %)"
    assert (row.expires - date.today()).days == 7
    assert row.conditions == Conditions(backend="gloo", world_size=2)
    file = tmp_path / "quarantine.toml"
    file.write_text(_file(), encoding="utf-8")
    assert command.main(["propose", "--same-inputs", "--file", str(file), *runs]) == 0
    assert "[[row]]" not in capsys.readouterr().out
    # Ranks that are threads have a backend of their own, for which no row of the run's backend is.
    assert command.main(["propose", "--same-inputs", *_write_runs(tmp_path, "pf", "thread")]) == 0
    assert re.findall("backend|world_size = 2", capsys.readouterr().out) == ["world_size = 2"]
    # No row can name a target that only Bazel has failed.
    ended = (RunRecord("//:a", run=number, status=status) for number, status in enumerate(("PASSED", "TIMEOUT")))
    (told,) = command.proposals(
        Report((InvocationRecord("events.json"),), tuple(ended)), (), date.today(), same_inputs=True
    )
    assert told.startswith("# //:a (the target as a whole): 1 of 2 runs failed, ")
    assert told.endswith("; no case says why, and a row is for cases")


def test_check_reads_xml_of_any_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, a test of a shell script ends the command by a traceback, or a row goes whose case fails now."""
    monkeypatch.chdir(tmp_path)
    Path("tests").mkdir()
    Path("tests/test_a.py").touch()
    Path("quarantine.toml").write_text(_file(("test_a.py", "tests/test_a.py")), encoding="utf-8")
    names = ("./build/run.sh", "/.hidden", f"tests.{'a sentence ' * 30}.of words", "tests.test_a.test_x")
    cases = "".join(f'<testcase name="{name}"/>' for name in names)
    Path("run-9.xml").write_text(f'<testsuite timestamp="2026-11-09T23:00:00Z">{cases}</testsuite>', encoding="utf-8")
    given = ["check", "quarantine.toml", "--passes", "1", "--results", "."]
    assert command.main(given) == 1
    assert "tests/test_a.py::test_x has passed its last 1 recorded runs" in capsys.readouterr().out
    # The last run is that with the latest time.
    failed = '<testcase name="tests.test_a.test_x"><failure/></testcase>'
    Path("run-10.xml").write_text(
        f'<testsuite timestamp="2026-11-10T00:30:00+01:00">{failed}</testsuite>', encoding="utf-8"
    )
    assert command.main(given) == 0


@pytest.mark.parametrize(("statuses", "is_told"), [("qppp", True), ("ppqp", False), ("pp", False)])
def test_check_tells_rows_that_must_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], statuses: str, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, a row stays for ever, goes while its case still fails, or makes every run fail unseen."""
    monkeypatch.chdir(tmp_path)
    Path("test_a.py").touch()
    Path("quarantine.toml").write_text(_file(), encoding="utf-8")
    runs = _write_runs(tmp_path, statuses)
    assert command.main(["check", "quarantine.toml", "--passes", "3", "--results", *runs]) == int(is_told)
    assert ("test_a.py::test_x has passed its last 3 recorded runs" in capsys.readouterr().out) == is_told
    # The runs were on gloo.
    Path("quarantine.toml").write_text(_file() + 'world_size = 2\nbackend = "nccl"\n', encoding="utf-8")
    assert command.main(["check", "quarantine.toml", "--passes", "3", "--results", *runs]) == 0
    assert "none has expired" in capsys.readouterr().out
    # Every run would fail by a row that has expired, or that is for a file that is gone.
    Path("quarantine.toml").write_text(_file(("2999", "2020")), encoding="utf-8")
    Path("test_a.py").unlink()
    assert command.main(["check", "quarantine.toml"]) == 1
    gone, expired = sorted(capsys.readouterr().out.splitlines(), key=lambda line: "expired" in line)
    assert "there is no file test_a.py here; owner comms" in gone
    assert "has expired on 2020-01-31: flaky; owner comms, https://example.org/1" in expired


@pytest.mark.parametrize("other", [{"cached": "remote"}, {"versions": {"torch": "2.15.0"}}, {"backend": "nccl"}])
def test_a_case_is_not_healed_by_runs_that_tell_nothing_about_its_row(other: dict[str, Any]) -> None:
    """If this fails, a nightly build without a change, or the job with another torch, has a row removed too early."""
    (row,) = rows_in(_file() + 'torch = "<2.15"\nbackend = "gloo"\n', _FILE)
    case = CaseRecord("test_a.test_x", "passed", "test_a.py::test_x", world_size=2)
    run = RunRecord("//:a", backend="gloo", versions={"torch": "2.14.0"}, cases=(case,))
    for passes, is_healed in ((1, True), (2, False)):
        report = Report((InvocationRecord("events.json"),), (run, replace(run, **other)))
        assert bool(list(command.healed(report, (row,), passes))) == is_healed


def test_its_output_may_have_no_reader_and_no_unicode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, `check | head` or a terminal without UTF-8 shows a traceback, and not which row has expired."""
    file = tmp_path / "quarantine.toml"
    file.write_text(_file(("2999", "2020"), ("flaky", "\N{SNOWMAN}")), encoding="utf-8")
    output = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", output)
    assert command.main(["check", str(file)]) == 1
    assert b"has expired on 2020-01-31: \\u2603;" in output.buffer.getvalue()
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert command.main(["check", str(file)]) == 128 + signal.SIGPIPE
