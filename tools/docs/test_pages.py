"""The API pages of small sources."""

from __future__ import annotations

from pathlib import Path

import docstrings
import pytest
import starlark_api

MACRO = '''\
"""A private file."""

def make(*, name, size = "small", **kwargs):
    """Makes a target.

    Refuses bad names.

    Args:
        name: Of the target,
            which is | new.
        size: Bazel's size.
        **kwargs: Passed on.
    """
    print(name, size, kwargs)
'''


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a package `lib` that has a private file."""
    package = tmp_path / "lib" / "private"
    package.mkdir(parents=True)
    (package / "make.bzl").write_text(MACRO, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_public(repository: Path, text: str) -> None:
    """Write the public file `//lib:defs.bzl`."""
    (repository / "lib" / "defs.bzl").write_text(f'"""What users load."""\n\n{text}', encoding="utf-8")


def test_a_macro_is_followed_to_the_file_that_defines_it(repository: Path) -> None:
    """Otherwise the page of a thin public file would be empty."""
    write_public(repository, 'load("//lib/private:make.bzl", _make = "make")\n\nmake = _make\n')
    page = starlark_api.page(["//lib:defs.bzl"])
    assert '```starlark\nmake(\n    *,\n    name,\n    size = "small",\n    **kwargs,\n)\n```' in page
    assert "Makes a target.\n\nRefuses bad names.\n\n| argument | what |" in page
    assert "| `name` | Of the target, which is \\| new. |" in page
    assert "| `**kwargs` | Passed on. |" in page


def test_private_names_are_left_out(repository: Path) -> None:
    """Otherwise users would load names that may change at any time."""
    info = 'Info = provider(doc = "Facts " + "of a target.", fields = {"a": "int: first."})'
    write_public(repository, f"_LIMIT = 3\n{info}\n")
    page = starlark_api.page(["//lib:defs.bzl"])
    assert "### Info\n\n*Provider.* Facts of a target.\n\n| field | what |\n" in page
    assert "| `a` | int: first. |" in page
    assert "_LIMIT" not in page


def test_tags_of_an_extension_are_on_the_page(repository: Path) -> None:
    """Otherwise users could not know what to write into MODULE.bazel."""
    write_public(
        repository,
        '_pool = tag_class(doc = "A pool.", attrs = {"name": attr.string(doc = "Its name.", mandatory = True)})\n'
        'ext = module_extension(doc = "Says.", implementation = None, tag_classes = {"pool": _pool})\n',
    )
    page = starlark_api.page(["//lib:defs.bzl"])
    assert "### ext\n\n*Module extension.* Says.\n\n#### `pool`\n\nA pool." in page
    assert "| `name` | string, mandatory | Its name. |" in page


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def bare(name):\n    pass\n", "bare has no docstring"),
        ('def half(name):\n    """Does."""\n', "the docstring of half does not describe name"),
        ("other = struct(a = 1)\n", r"no page can be made of struct\(\.\.\.\)"),
        ("limit = 3\n", "limit is neither a function nor a rule"),
        ("gone = _gone\n", "nothing defines _gone"),
        ('Info = provider(doc = "%s" % 1)\n', "expected a plain string"),
        ('Info = provider(doc = "Facts.", fields = {"a": "First."} | MORE)\n', "expected a dict"),
    ],
)
def test_a_name_that_cannot_be_shown_is_an_error(repository: Path, text: str, said: str) -> None:
    """Otherwise a public name would silently be missing from the page."""
    write_public(repository, text)
    with pytest.raises(docstrings.ApiError, match=said):
        starlark_api.page(["//lib:defs.bzl"])


def test_sections_of_a_docstring_become_lists() -> None:
    """Otherwise arguments would run together in one paragraph."""
    docstring = """Does a thing::

        do()

    Args:
        first: One,
            and more.

    Returns:
        What was
        done.

    Raises:
        ValueError: If not.
    """
    assert docstrings.markdown(docstring) == (
        "Does a thing:\n\n    do()\n\nArgs:\n\n- `first`: One, and more.\n\nReturns: What was done.\n\n"
        "Raises:\n\n- `ValueError`: If not."
    )
