"""The page of reference, of small sources and of the library."""

from __future__ import annotations

import pytest
import reference

from dist_testing.core.ground.add_ons import add_ons
from dist_testing.core.pytest.options import argument_texts

NOTED = """\
# Prose comes first.
# $DIST_TESTING_ONE (user): 1 shows the output, with as many
# lines as there are (default: 0, or (1)).
# $NCCL_TWO,
# $NCCL_THREE (library): limits of NCCL.
NAMES = ("DIST_TESTING_ONE", "NCCL_TWO", "NCCL_THREE")
"""
PROGRAM = '''\
"""Runs.

Exit status: 0 if all is
well; 128 + N if signal N ended it; N as pytest ends.
"""

if __name__ == "__main__":
    pass
'''


def test_a_comment_about_variables_can_have_several_lines() -> None:
    """Otherwise the page would have half of a text, or would give it to the wrong variable."""
    assert list(reference.notes(NOTED)) == [
        (("DIST_TESTING_ONE",), "user", "1 shows the output, with as many lines as there are (default: 0, or (1))"),
        (("NCCL_TWO", "NCCL_THREE"), "library", "limits of NCCL"),
    ]


def test_variables_are_in_the_section_of_those_who_set_them() -> None:
    """Otherwise a user would set what the library sets."""
    text = "\n".join(reference.variables({"one.py": NOTED}))
    user, library = text.split("Which variables does the library set")
    assert "| `DIST_TESTING_ONE` | 0, or (1) | 1 shows the output, with as many lines as there are. |" in user
    assert "| `NCCL_TWO`, `NCCL_THREE` |  | Limits of NCCL. |" in library


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("one.py", 'A = os.environ["DIST_TESTING_NEW"]\n', "one.py uses DIST_TESTING_NEW, and no comment"),
        ("one.bzl", 'A = "DIST_TESTING_NEW"\n', "one.bzl uses DIST_TESTING_NEW, and no comment"),
        ("one.py", 'env.setdefault("TORCH_NEW", "1")\n', "one.py uses TORCH_NEW, and no comment"),
        ("one.py", "# $NCCL_OLD (user): a limit.\n", r"one.py has a comment about \$NCCL_OLD, and does not use it"),
        ("one.py", f"{NOTED}\n{NOTED}", r"two comments say that user sets \$DIST_TESTING_ONE"),
        ("one.py", "# $NCCL_ONE (machine): a limit.\n", r"'\$NCCL_ONE \(machine\): a limit.' is not of the form"),
        ("one.py", "# $NCCL_ONE (user): no period\n", "is not of the form"),
    ],
)
def test_a_variable_without_its_one_text_is_an_error(name: str, text: str, said: str) -> None:
    """Otherwise the page would lack a variable that the library uses, or have one that it does not use."""
    with pytest.raises(reference.PageError, match=said):
        list(reference.variables({name: text}))


def test_names_of_torchs_own_tests_are_no_settings() -> None:
    """Otherwise the page would list what only torch reads."""
    assert not reference.used("conformance/rows/life.py", 'A = "TORCH_DIST_INIT_BARRIER"\n')
    assert reference.used("conformance/cells.py", 'A = "TORCH_DIST_INIT_BARRIER"\n') == {"TORCH_DIST_INIT_BARRIER"}


def test_exit_codes_come_from_the_docstring_of_a_program() -> None:
    """Otherwise a script in CI would be written from the code."""
    _, table = reference.exit_codes({"dist_testing.one.__main__": PROGRAM, "dist_testing.two": '"""No program."""\n'})
    assert table.splitlines()[2:] == [
        "| `python -m dist_testing.one` | **0** All is well. **128 + N** Signal N ended it. **N** As pytest ends. |"
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PROGRAM.replace("Exit status", "Status"), "dist_testing.one has no paragraph"),
        (PROGRAM.replace("well; 128", "well; also 128"), "dist_testing.one has 'also 128"),
    ],
)
def test_a_program_without_exit_codes_is_an_error(text: str, said: str) -> None:
    """Otherwise the page would lack a new program."""
    with pytest.raises(reference.PageError, match=said):
        list(reference.exit_codes({"dist_testing.one": text}))


def test_the_page_has_what_the_library_declares() -> None:
    """Otherwise a new argument or option could be missing from the page."""
    text = reference.page()
    options = [option for add_on in add_ons() for option in add_on.options]
    assert len(options) > 3
    for name in (*argument_texts(), "--dist-world-size=N[,N...]", *options):
        assert f"\n| `{name}" in text
    for name in ("dist_marker", "case_timeout_s", "keeps_state", "DIST_TESTING_LIVE", "DIST_TESTING_EXECUTOR"):
        assert f"\n| `{name}` |" in text
    # The address of an object differs from run to run.
    assert " at 0x" not in text
