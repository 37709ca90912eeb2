"""Declarations of backends in .bzl files, as Python reads them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dist_testing.backend_files import read_backend_file
from dist_testing.core.ground.backends import Backend, add_backends, backends
from dist_testing.core.pytest.option_values import declared_backends
from tests.support.results import refusal

ROOT = Path(__file__).parents[2]
LOAD = 'load("@dist_testing//dist_testing:backends.bzl", "declare_backend")\n'
RING = 'declare_backend(name = "ring", torch_backend = "ring", device = "cpu", register_module = "ring"{})\n'


@pytest.fixture(autouse=True)
def no_added_backends() -> Iterator[None]:
    """A test leaves the process with the library's own backends."""
    yield
    add_backends([])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a declaration is."""
    return tmp_path / "backend.bzl"


def refused(file: Path) -> str:
    """The text for a wrong file, which it names."""
    text = refusal(lambda: read_backend_file(file))
    assert str(file) in text.partition("\n")[0]
    return text


def test_every_argument_is_read(file: Path) -> None:
    """What Bazel and plain pytest read from one call must be one backend."""
    file.write_text(
        '"""Ours."""\n'
        + LOAD
        + RING.format(
            ', features = ["moves_data"], timeout_s = 5, env = {"A": "1"}, binds_device = True,\n'
            '    deps = [Label("//ring:library")],  # Only the build needs it.\n'
        ).replace("declare_backend", "RING = declare_backend"),
        encoding="utf-8",
    )
    (ring,) = read_backend_file(file)
    assert ring == Backend(
        "ring",
        "ring",
        "cpu",
        ("moves_data",),
        register_module="ring",
        timeout_s=5,
        env={"A": "1"},
        binds_device=True,
    )


def test_a_file_may_declare_several_under_another_name(file: Path) -> None:
    """A load() may rename the function, and a table may hold the values."""
    star = RING.replace('"ring"', '"star"')
    calls = "".join([RING.format(""), star.format("")]).replace("declare_backend", "declare")
    file.write_text(LOAD.replace(', "declare_', ', declare = "declare_') + calls, encoding="utf-8")
    assert [backend.name for backend in read_backend_file(file)] == ["ring", "star"]


@pytest.mark.parametrize("name", sorted(backends()))
def test_our_own_declarations_are_read_as_bazel_reads_them(name: str) -> None:
    """Two readers of one call that differ would give a test another backend under plain pytest."""
    assert read_backend_file(ROOT / "backends" / name / "backend.bzl") == [backends()[name]]


def test_defaults_are_the_same_in_starlark_and_in_python() -> None:
    """A changed default in one of them would change what a declaration means."""
    tree = ast.parse((ROOT / "backends" / "declare.bzl").read_text(encoding="utf-8"))
    (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "declare_backend"]
    pairs = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    starlark = {argument.arg: MISSING if value is None else ast.literal_eval(value) for argument, value in pairs}
    assert starlark.pop("deps") == []
    python: dict[str, Any] = {}
    for field in fields(Backend):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        python[field.name] = list(default) if isinstance(default, tuple) else default
    assert starlark == python


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (LOAD + "declare_backend(", ":2 does not parse: '(' was never closed"),
        ("\0", "does not parse"),
        (LOAD + "(" * 500 + ")" * 500, "does not parse"),
        ("", "declares no backend"),
        (LOAD, "declares no backend"),
        # Of another library.
        ('load("//other:file.bzl", "other")\n' + RING.format(""), "declares no backend"),
        (LOAD + 'declare_backend("ring")', ":2: the call of declare_backend has positional arguments"),
        (LOAD + 'declare_backend(**{"name": "ring"})', "or **arguments"),
        # Ignored, it would leave the default in force, silently.
        (LOAD + RING.format(', vendr = "amd"'), "has no argument vendr.\n"),
        (LOAD + RING.format(', vendr = "amd"'), "Did you mean 'vendor'?"),
        (LOAD + RING.format(", features = FEATURES"), "has features = FEATURES, which is not a literal"),
        (LOAD + RING.format(", timeout_s = 2 * 60"), "has timeout_s = 2 * 60, which is not a literal"),
        (LOAD + 'declare_backend(name = "ring", device = "cpu")', "lacks the argument torch_backend"),
        (LOAD + RING.format(', timeout_s = "5"'), "timeout_s = '5'; expected int"),
        (LOAD + RING.format(', vendor = "amd"'), "vendor = 'amd' is out of range"),
    ],
    ids=lambda value: "" if "load(" in value else value,
)
def test_a_wrong_file_says_where_and_what(file: Path, text: str, part: str) -> None:
    """The file, the line and the argument: without these one would search in BUILD files."""
    file.write_text(text, encoding="utf-8")
    assert part in refused(file)


def test_a_file_that_is_not_there_says_how_to_name_it(file: Path) -> None:
    """A path that is relative to another folder is the usual reason."""
    assert "Path(__file__).parent" in (text := refused(file))
    # The conformance command reads a file without the hook.
    assert "--declared-in" in text


def hooked(*results: object) -> list[tuple[Backend, str]]:
    """What the plugin makes of the hook's results."""
    config: Any = SimpleNamespace(hook=SimpleNamespace(pytest_dist_backends=lambda: list(results)))
    return declared_backends(config)


def test_the_hook_returns_paths_and_backends(file: Path) -> None:
    """A conftest.py returns a path, the plugin of an installed package perhaps a value."""
    file.write_text(LOAD + RING.format(""), encoding="utf-8")
    star = Backend("star", "star", "cpu", register_module="star")
    found = hooked([file], star, str(file))
    assert [backend.name for backend, _ in found] == ["ring", "star", "ring"]
    assert found[0][1] == str(file)
    add_backends(found)
    assert {"ring", "star"} <= set(backends())


@pytest.mark.parametrize("result", [3, [None], [["nested"]], {"name": "ring"}], ids=repr)
def test_another_result_of_the_hook_is_refused(result: object) -> None:
    """Ignored, the backend would be missing without a reason."""
    assert "has returned" in refusal(lambda: hooked(result))
