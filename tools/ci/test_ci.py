"""The list of sub-commands, the way to each, and what the program needs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import ci
import pytest

_LIST = os.environ.get("CI_FILES")


@pytest.mark.parametrize("name", ci.SUBCOMMANDS)
def test_a_sub_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """If it fails, the list names a command that does not start."""
    with pytest.raises(SystemExit) as ended:
        ci.main([name, "--help"])
    assert ended.value.code == 0
    # dist_testing.report has a program of its own.
    program = {"page": "report", "ran-nowhere": "report ran-nowhere"}.get(name, f"ci {name}")
    assert capsys.readouterr().out.startswith(f"usage: {program} [-h]")


@pytest.mark.parametrize("name", ["ran-nowhere", "ran-nothing"])
def test_a_reader_may_end_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """If it fails, `ci ran-nothing | head` ends in a traceback."""
    results = tmp_path / "test.xml"
    results.write_text("<testsuite><testcase name='test_a'/></testsuite>", encoding="utf-8")
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert ci.main([name, str(results)]) == 128 + signal.SIGPIPE


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [([], 2, "ci: no sub-command\n"), (["tests"], 2, "ci: there is no sub-command 'tests'\n"), (["--help"], 0, "")],
)
def test_without_a_sub_command_there_is_the_list(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, said: str
) -> None:
    """If it fails, a typing error makes a CI job green, or users must read the sources to find a command."""
    assert ci.main(arguments) == status
    told = capsys.readouterr()
    listed = told.err if status else told.out
    assert listed.endswith(said)
    assert [line.split()[0] for line in listed.splitlines() if line.startswith("    ")] == list(ci.SUBCOMMANDS)


def test_without_its_dependencies_the_program_names_bazel() -> None:
    """If it fails, a program that was started without Bazel ends with a traceback."""
    done = subprocess.run([sys.executable, "-I", ci.__file__, "flakes"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("Run it by Bazel: bazel run @dist_testing//tools/ci -- flakes\n")


@pytest.mark.skipif(_LIST is None, reason="Bazel makes the list: ./bazelw test //tools/ci:test_ci")
def test_the_command_needs_no_torch_and_no_pytest() -> None:
    """If it fails, a CI job downloads torch in order to count results."""
    assert _LIST is not None
    files = Path(_LIST).read_text(encoding="utf-8").splitlines()
    assert {"tools/ci/ci.py", "tools/ci/results.py", "dist_testing/core/ground/errors.py"} <= set(files)
    # `dist_testing/__init__.py` imports torch.
    unwanted = re.compile(r"torch/|pytest|pypi(?!_report)|^dist_testing/__init__\.py$")
    assert [file for file in files if unwanted.search(file)] == []
