"""What is checked before a program runs, and what Python does at its end."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from dist_testing import run_program
from dist_testing.core.ground.backends import default_backend
from dist_testing.core.ground.case import Case
from dist_testing.core.ground.spec import Spec
from dist_testing.programs.main_module import exit_status
from dist_testing.programs.program import check_program
from tests.support.results import refusal

_NOT_PYTHON, _RUNS_NOTHING = "the program is not Python", "would pass without running anything"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"def main(:\n    pass\n", f"line 1: {_NOT_PYTHON}"),
        (b"x = 1\nprint(\n", f"line 2: {_NOT_PYTHON}"),
        (b"\x7fELF\x02\x01\x00\x00", _NOT_PYTHON),
        (b"print('\xff')\n", _NOT_PYTHON),
        (b"import os\n\n\ndef test_one():\n    pass\n", _RUNS_NOTHING),
        (b'"""Only words."""\nSIZE = 3\n', _RUNS_NOTHING),
        (b"", _RUNS_NOTHING),
        *((script, "") for script in (b"print()\n", b"code = main()\n", b"if True:\n    pass\n", b"x.y()\n")),
        (b"import os\nos.x: int = f()\n", ""),
    ],
)
def test_a_file_that_cannot_be_a_program_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    """If this fails, each rank reports the same mistake, a file of tests passes unrun, or a script is refused."""
    file = tmp_path / "program.py"
    file.write_bytes(content)
    if said:
        assert said in refusal(lambda: check_program(str(file)))
    else:
        check_program(str(file))


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    """If this fails, a typing error in the command ends with a traceback of this library."""
    assert "No such file" in refusal(lambda: check_program(str(tmp_path / "absent.py")))
    assert "It is a folder." in refusal(lambda: check_program(str(tmp_path)))
    assert "null" in refusal(lambda: check_program("a\0b.py"))
    # pytest's own words would be about the name of a test.
    assert "contains [ and ::" in refusal(lambda: check_program("a[1]/b::c.py"))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, 0),
        (SystemExit(), 0),
        (SystemExit(0), 0),
        (SystemExit(3), 3),
        (SystemExit(-1), 255),
        (SystemExit(256), 0),
        (SystemExit("text"), 1),
        (SystemExit(True), 1),
        (ValueError(), 1),
        (KeyboardInterrupt(), 1),
    ],
    ids=repr,
)
def test_exit_status_is_that_of_python(error: BaseException | None, status: int) -> None:
    """If this fails, a program passes here and fails under torchrun, or the other way round."""
    assert exit_status(error) == status


def test_the_command_of_a_report_repeats_the_run(tmp_path: Path) -> None:
    """If this fails, a failed program passes when it runs again, because its faults are left out."""
    file = tmp_path / "program.py"
    file.write_text("print()\n")
    options = ["--isolation=spawn", "--timeout=20", "--fault=0.5=kill(1)", "--fault=3=wire(loss=0.1)"]
    command = [*options, "--expected-exit=1=-9", str(file), "--fault=x"]
    program, _ = run_program._read(run_program._parser().parse_args(command))
    body = program.body(strict_calls=False)
    case = Case("program", 3, body, 20.0, "spawn", settings={"nodes": 2, **program.settings})
    told = program.command(case, Spec("", default_backend(), (3,), "spawn"))
    start = ["python", "-m", "dist_testing.run_program", "--backend=gloo", "--world-size=3", "--nodes=2"]
    assert shlex.split(told) == [*start, *command]


def test_a_wrong_command_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If this fails, a typing error ends with a traceback or is ignored, or each process of torchrun starts a world."""
    file = tmp_path / "program.py"
    file.write_text("print()\n")

    def told(*arguments: str) -> str:
        assert run_program.main(arguments) == 2
        text = capsys.readouterr().err
        assert len(text.splitlines()) == 3, text
        return text

    for option in ("--expected-exit=1", "--expected-exit=1=x", "--expected-exit=1=999", "--expected-exit=1=-65"):
        assert f"{option}: expected RANK=CODE" in told(option, str(file))
    without = told("--world-size=2")
    assert "expected a script; got none." in without
    assert "--world-size=4 train.py --steps=10, for example" in without
    monkeypatch.setenv("RANK", "1")
    assert "this process is already a rank (RANK=1)." in told(str(file))
