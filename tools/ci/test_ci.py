"""The list of sub-commands, and the way to each."""

from __future__ import annotations

import subprocess
import sys

import ci
import pytest


@pytest.mark.parametrize("name", ci.SUBCOMMANDS)
def test_a_sub_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """If it fails, the list names a command that does not start."""
    with pytest.raises(SystemExit) as ended:
        ci.main([name, "--help"])
    assert ended.value.code == 0
    # dist_testing.report has a program of its own.
    program = {"page": "report", "ran-nowhere": "report ran-nowhere"}.get(name, f"ci {name}")
    assert capsys.readouterr().out.startswith(f"usage: {program} [-h]")


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
