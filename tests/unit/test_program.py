"""What is checked before a program runs, and what Python does at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from dist_testing import run_program
from dist_testing.programs.main_module import exit_status
from dist_testing.programs.program import check_program
from tests.support.results import refusal


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"def main(:\n    pass\n", "line 1: the program is not Python"),
        (b"x = 1\nprint(\n", "line 2: the program is not Python"),
        (b"\x7fELF\x02\x01\x00\x00", "the program is not Python"),
        (b"print('\xff')\n", "the program is not Python"),
        (b"import os\n\n\ndef test_one():\n    pass\n", "would pass without running anything"),
        (b'"""Only words."""\nSIZE = 3\n', "would pass without running anything"),
        (b"", "would pass without running anything"),
    ],
    ids=["syntax", "open bracket", "binary", "encoding", "tests", "words", "empty"],
)
def test_a_file_that_cannot_be_a_program_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    """If this fails, each rank reports the same mistake, or a file of tests passes although none of them ran."""
    file = tmp_path / "program.py"
    file.write_bytes(content)
    assert said in refusal(lambda: check_program(str(file)))


@pytest.mark.parametrize(
    "content", ["print()\n", "code = main()\n", "if True:\n    pass\n", "import os\nos.x: int = f()\n", "x.y()\n"]
)
def test_a_script_is_a_program(tmp_path: Path, content: str) -> None:
    """If this fails, a correct script is refused."""
    file = tmp_path / "program.py"
    file.write_text(content)
    check_program(str(file))


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    """If this fails, a typing error in the command ends with a traceback of this library."""
    assert "No such file" in refusal(lambda: check_program(str(tmp_path / "absent.py")))
    assert "It is a folder." in refusal(lambda: check_program(str(tmp_path)))
    assert "null" in refusal(lambda: check_program("a\0b.py"))


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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--expected-exit=1"], "--expected-exit=1: expected RANK=CODE"),
        (["--expected-exit=1=x"], "--expected-exit=1=x: expected RANK=CODE"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_wrong_option_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    """If this fails, a typing error in the command ends with a traceback, or is ignored."""
    file = tmp_path / "program.py"
    file.write_text("print()\n")
    assert run_program.main([*options, str(file)]) == 2
    text = capsys.readouterr().err
    assert said in text
    assert len(text.splitlines()) == 3, text


def test_what_the_command_cannot_do_here_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If this fails, a user has to find out how to write the command, or each process of torchrun starts a world."""
    assert run_program.main(["--world-size=2"]) == 2
    text = capsys.readouterr().err
    assert "expected a script; got none." in text
    assert "--world-size=4 train.py --steps=10, for example" in text
    assert len(text.splitlines()) == 3, text
    file = tmp_path / "program.py"
    file.write_text("print()\n")
    monkeypatch.setenv("RANK", "1")
    assert run_program.main([str(file)]) == 2
    assert "this process is already a rank (RANK=1)." in capsys.readouterr().err
