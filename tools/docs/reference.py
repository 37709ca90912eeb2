"""Writes the reference of arguments, options, attributes, variables and exit codes to standard output.

`PYTHONPATH=. python tools/docs/reference.py > docs/reference.md` needs no Bazel. Each section has its own source:

- the marker: `argument_texts()`, by which the library refuses other arguments: "TYPE: MEANING (default: VALUE)";
- options of pytest: what each `pytest_addoption` of the library declares;
- attributes of unittest classes: their `Attributes:` sections, properties and values;
- environment variables: comments `# $NAME, $NAME (who): MEANING (default: VALUE).`, to the end of the block of comments
  or to the next line that begins with `$`;
- exit codes: the paragraph `Exit status: CODE MEANING; CODE MEANING.` in the docstring of each program.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import docstrings

import dist_testing
from dist_testing.core.ground.add_ons import add_ons
from dist_testing.core.pytest.options import argument_texts
from dist_testing.core.unittest.world_case import WorldCase

HEADER = """\
# Which options, variables and exit codes are there?

<!-- Generated from the sources. Write it anew: ./bazelw run //tools/docs:reference -->

Other pages have [`World` and the other public names](api/python.md), [`world.faults`](faults.md),
[`world.record` and `world.parity`](numbers.md), and [`dist_testing.services`](services.md). Others have the
[Starlark API](api/starlark.md), the [schema of events](reports.md#schema-2), and the
[variables of wheels](wheels.md)."""

_ROOT = Path(dist_testing.__file__).parent
_PLUGIN = "dist_testing.core.pytest.plugin"
_CLASSES = ("MultiProcessTestCase", "MultiProcContinuousTest", "MultiThreadedTestCase")
# Programs that `python -m` does not start, in the words of the page.
_PROGRAMS = {
    _PLUGIN: "`pytest`",
    "dist_testing.main.dist_test_main": "a target of `dist_py_test`",
    "dist_testing.report.ran_nowhere": "`python -m dist_testing.report ran-nowhere`",
    "dist_testing.run_tests": "`python test_file.py` with `run_tests()`",
}
# Who sets a variable, as comments have it, to the heading and the remark of the page.
_SETTERS = {
    "user": ("Which variables can I set?", "All are optional."),
    "library": (
        "Which variables does the library set on ranks?",
        "Ranks inherit the environment of the runner. The library keeps your value unless the text says otherwise.",
    ),
    "launcher": ("Which variables of launchers does it read?", "See [clusters](clusters.md)."),
    "CI": ("Which variables of CI does it read?", "See [reports](reports.md)."),
    "Bazel": (
        "Which variables of Bazel does it read?",
        "Bazel's own documentation has their meaning. Ranks see [some of them]"
        "(consumers.md#how-does-a-target-work-with-bazel-and-where-are-its-results).",
    ),
    "internal": ("Which variables are internal?", "Do not set them:"),
}
# Users need only the names of these.
_ONLY_NAMES = ("Bazel", "internal")
_NOTE = re.compile(r"(\$[A-Z0-9_]+(?:, \$[A-Z0-9_]+)*) \((\w+)\): (.+)\.")
_OWN = re.compile(r"\bDIST_TESTING_[A-Z_]*[A-Z]\b")
# Texts in code that are names of variables of other programs.
_FOREIGN = re.compile(
    r"(BAZEL_TEST|BUILD_WORK|CONFORMANCE_|COVERAGE_|CUDA_|GITHUB_|GLOO_|HIP_|MASTER_|MKL_|MPI_|NCCL_|OMPI_|OMP_|OPENBLAS_"
    r"|PET_|PMI|PYTORCH_|RUNFILES_|SLURM_|TESTBRIDGE_|TEST_(?!SKIPS)|TORCH|TP_|TRITON_|XML_OUTPUT_)[A-Z0-9_]*[A-Z0-9]"
    r"|(GROUP_|LOCAL_|ROLE_)?(RANK|WORLD_SIZE)"
)
# There the names are those of torch's own tests, or of what torch itself changes.
_ABOUT_TORCH = ("compat", "conformance/rows", "pool_state.py")


class PageError(Exception):
    """A source lacks what the page needs. The text has one line without a period."""


class Note(NamedTuple):
    """The text about some variables, and who sets them."""

    names: tuple[str, ...]
    who: str
    text: str


class _Declared:
    """Takes the place of pytest's parser, whose lists of options are private."""

    def __init__(self) -> None:
        self.options: list[tuple[str, Mapping[str, Any]]] = []
        self.ini: list[tuple[str, str, str]] = []

    def getgroup(self, *_: str) -> _Declared:
        return self

    def addoption(self, name: str, **attributes: Any) -> None:
        self.options.append((name, attributes))

    def addini(self, name: str, help: str, type: str = "string", default: object = None) -> None:  # noqa: A002  # pytest's names
        self.ini.append((name, type, help))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, *(map(docstrings.escaped, row) for row in rows)]
    head_line, *others = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([head_line, f"|{'---|' * len(head)}", *others])


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _told(text: str) -> tuple[str, str]:
    """Return the meaning in "MEANING (default: VALUE)" as a sentence, and the value; "" if there is none."""
    meaning, _, default = text.removesuffix(".").removesuffix(")").partition(" (default: ")
    meaning = meaning if default else text.removesuffix(".")
    return f"{meaning[:1].upper()}{meaning[1:]}.", default


def _marker() -> Iterator[str]:
    yield "## Arguments of `@pytest.mark.distributed`"
    yield "All are keyword arguments. `None` stands for the default. See [writing tests](writing_tests.md)."
    rows = []
    for name, text in argument_texts().items():
        kind, _, told = text.partition(": ")
        meaning, default = _told(told)
        rows.append((_code(name), _code(kind), default, meaning))
    yield _table(("argument", "type", "default", "meaning"), rows)


def _options(sources: Mapping[str, str]) -> Iterator[str]:
    yield "## Options of pytest"
    modules = [name for name, text in sources.items() if re.search(r"^(def )?pytest_addoption\b", text, re.MULTILINE)]
    for name in sorted(modules, key=lambda name: (name != _PLUGIN, name)):
        declared = _Declared()
        importlib.import_module(name).pytest_addoption(declared)
        if name != _PLUGIN:
            yield f"With `-p {name}`:"
        options = []
        for option, attributes in declared.options:
            meaning, default = _told(attributes["help"])
            value = attributes.get("metavar", "")
            default = default or ("off" if attributes.get("action") == "store_true" else "none")
            options.append((_code(f"{option}={value}" if value else option), default, meaning))
        if options:
            yield _table(("option", "default", "meaning"), options)
        ini = []
        for ini_name, kind, text in declared.ini:
            meaning, default = _told(text)
            ini.append((_code(ini_name), "words" if kind == "args" else kind, default or "none", meaning))
        if ini:
            yield _table(("ini option", "type", "default", "meaning"), ini)


def _attributes(cls: type) -> Iterator[tuple[str, str, str, str]]:
    """Yield the rows about what the class itself has, without its bases."""
    kinds = inspect.get_annotations(cls)
    described = docstrings.entries(docstrings.split(cls.__doc__ or "")[1].get("Attributes", ""))
    for name, text in described.items():
        kind = re.sub(r"^ClassVar\[(.*)\]$", r"\1", kinds.get(name, "")).replace("Any", "")
        value = vars(cls).get(name, cls)
        # The text tells a value that is set later, or that has no short form.
        is_short = bool(kind) and (value is None or isinstance(value, bool | float | str))
        yield _code(name), _code(kind), _code(repr(value)) if is_short else "", _told(text)[0]
    for name, member in vars(cls).items():
        if isinstance(member, property) and not name.startswith("_"):
            text = docstrings.split(member.__doc__ or "")[0]
            yield _code(name), _code(getattr(member.fget, "__annotations__", {})["return"]), "", _told(text)[0]


def _classes() -> Iterator[str]:
    head = ("attribute", "type", "default", "meaning")
    settings = ", ".join(_code(add_on.name) for add_on in add_ons() if add_on.setting)
    yield "## Attributes of unittest classes"
    yield "All classes of `dist_testing`:"
    yield _table(head, _attributes(WorldCase))
    yield f"Classes whose ranks are processes also have {settings}, as the arguments of the marker."
    for name in _CLASSES:
        bases = [base for base in getattr(dist_testing, name).__mro__ if issubclass(base, WorldCase)]
        yield f"`{name}`:"
        yield _table(head, (row for base in bases if base is not WorldCase for row in _attributes(base)))


def notes(text: str) -> Iterator[Note]:
    """Yield the notes about variables in a source."""
    for block in re.findall(r"(?:^[ ]*#.*\n)+", text, re.MULTILINE):
        lines = [line.strip().removeprefix("#").strip() for line in block.splitlines()]
        for part in re.split(r"(?<!,)\n(?=\$[A-Z])", "\n" + "\n".join(lines))[1:]:
            # After a comma, a list of names goes on.
            told = _NOTE.fullmatch(" ".join(part.split()))
            if told is None or told[2] not in _SETTERS:
                raise PageError(f"the comment {part.splitlines()[0]!r} is not of the form '$NAME (who): meaning.'")
            yield Note(tuple(told[1].replace("$", "").split(", ")), told[2], told[3])


def used(name: str, text: str) -> set[str]:
    """Return the variables that a source uses; `name` is its path in the package."""
    found = set(_OWN.findall(text))
    if name.endswith(".py") and not name.startswith(_ABOUT_TORCH):
        texts = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
        found |= {value for value in texts if isinstance(value, str) and _FOREIGN.fullmatch(value)}
    return found


def variables(files: Mapping[str, str]) -> Iterator[str]:
    """Yield the section about environment variables, from sources by their paths in the package."""
    told: dict[str, list[Note]] = {who: [] for who in _SETTERS}
    needed: dict[str, str] = {}
    for name, text in files.items():
        needed |= dict.fromkeys(used(name, text), name)
        for note in notes(text):
            told[note.who].append(note)
            for variable in note.names:
                if not re.search(rf"(?<!\$)\b{variable}\b", text):
                    raise PageError(f"{name} has a comment about ${variable}, and does not use it")
    for who, found in told.items():
        names = [variable for note in found for variable in note.names]
        if twice := {variable for variable in names if names.count(variable) > 1}:
            raise PageError(f"two comments say that {who} sets ${min(twice)}")
        needed = {variable: name for variable, name in needed.items() if variable not in names}
    for variable, name in sorted(needed.items()):
        raise PageError(f"{name} uses {variable}, and no comment '# ${variable} (who): meaning.' describes it")
    yield "## Environment variables"
    for who, (heading, remark) in _SETTERS.items():
        rows = [(", ".join(map(_code, note.names)), *reversed(_told(note.text))) for note in sorted(told[who])]
        if rows:
            yield f"### {heading}"
            yield remark
            if who in _ONLY_NAMES:
                yield "\n".join(f"- {row[0]}" for row in rows)
            else:
                yield _table(("variable", "default", "meaning"), rows)


def exit_codes(sources: Mapping[str, str]) -> Iterator[str]:
    """Yield the section about exit codes, from sources by the names of their modules."""
    rows: dict[str, list[str]] = {}
    for name, text in sorted(sources.items(), key=lambda source: (source[0] not in _PROGRAMS, source[0])):
        told = re.search(r"^Exit status: (.+?)\.$", ast.get_docstring(ast.parse(text)) or "", re.DOTALL | re.MULTILINE)
        if told is None and (name in _PROGRAMS or re.search(r'^if __name__ == "__main__"', text, re.MULTILINE)):
            raise PageError(f"the docstring of {name} has no paragraph 'Exit status: CODE MEANING; ...'")
        for part in " ".join(told[1].split()).split("; ") if told else ():
            found = re.fullmatch(r"(\d+(?: \+ N)?|N) (.+)", part)
            if found is None:
                raise PageError(f"the docstring of {name} has {part!r}, and no exit code before it")
            program = _PROGRAMS.get(name, f"`python -m {name.removesuffix('.__main__')}`")
            rows.setdefault(program, []).append(f"**{found[1]}** {_told(found[2].removeprefix('if '))[0]}")
    yield "## Exit codes"
    yield _table(("program", "codes"), ((program, " ".join(codes)) for program, codes in rows.items()))


def page(root: Path = _ROOT) -> str:
    """Return the page of the package in a directory."""
    paths = [path for path in sorted(root.rglob("*")) if path.suffix in (".py", ".bzl")]
    files = {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    sources = {
        f"{root.name}.{name.removesuffix('.py').replace('/', '.').removesuffix('.__init__')}": text
        for name, text in files.items()
        if name.endswith(".py")
    }
    blocks = [HEADER, *_marker(), *_options(sources), *_classes(), *variables(files), *exit_codes(sources)]
    return "\n\n".join(blocks) + "\n"


def main() -> int:
    """Print the page, and return the exit status."""
    try:
        text = page()
    except PageError as error:
        sys.stderr.write(
            f"reference.py: {error}.\n"
            "docs/reference.md is made from the sources, and has everything that users can set.\n"
            "Write the text in the source; the docstring of tools/docs/reference.py has its form.\n"
        )
        return 1
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
