"""Checks the code of the pages for users against what exists, so that no page shows what does not work.

Each block of code names its language, which decides what is checked:

    python        it parses; tests/process/test_page_examples.py runs it
    starlark      it parses; the arguments of the library's rules exist
    yaml          tests/process/test_page_examples.py parses it
    toml, json    it parses
    ini           it parses
    sh, console   modules, programs and their options exist; e2e and tests/process run those of the tutorial, README.md,
                  consumers.md and ci.md, and the queries of selection.md
    bazelrc       as below
    text          an output, or a file in no language: nothing

A comment above a block is the file of e2e/ that has its lines, a file or a step of a page that a test follows, or one
of `NOT_RUN`. In the text of a page, too, each option `--dist-*`, variable `DIST_TESTING_*`, configuration, label and
module of the library exists.
"""

from __future__ import annotations

import ast
import configparser
import json
import re
import shlex
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

_BLOCK = re.compile(
    r"^(?:<!-- (?P<comment>[^\n]+) -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
NOT_RUN = ("not run: a part of a file", "not run: needs another package")
# Pages whose files tests write, and whose steps they run.
_STEPS = ("README.md", "docs/consumers.md", "docs/tutorial.md")
_RULE = re.compile(r"^```starlark\n([\w.]+)\(([^`]*)\)\n```$", re.MULTILINE)
# Programs whose options after the first word that is no option belong to another program.
_RUNNERS = ("compat", "run_program")
# Bazel's own, which programs of `bazel run` pass on.
_BAZELS = re.compile(r"--(config|@|test_|remote_)")
_NAMES = {
    "option": re.compile(r"(?<![\w-])--dist-[a-z][a-z-]*[a-z]"),
    "variable": re.compile(r"\bDIST_TESTING_[A-Z_]*[A-Z]\b"),
    "configuration": re.compile(r"--config=(\w+)"),
    "label": re.compile(r"@dist_testing//[\w/]+(?::[\w.]+)?"),
    "module": re.compile(
        r"(?:python3? -m|-p) (dist_testing[.\w]*\w|tests[.]\w[.\w]*\w)|(?:from|import) (dist_testing[.\w]*)"
    ),
    "file": re.compile(r"python3? (?:\.\./dist_testing/)?(tools/[\w/]+\.py)"),
}


def wrong_blocks(pages: Iterable[str], root: Path = Path()) -> list[str]:
    """Return a complaint for each wrong block or name in the pages, which are Markdown files below the repository."""
    texts = {page: (root / page).read_text("utf-8") for page in pages}
    exists = _Exists(root, texts.values())
    return [
        f"{page}: {complaint}"
        for page, text in texts.items()
        for complaint in (*_wrong_names(text, exists), *_wrong_code(page, text, exists))
    ]


def _wrong_names(text: str, exists: _Exists) -> Iterator[str]:
    for kind, pattern in _NAMES.items():
        for found in pattern.finditer(text):
            name = found[found.lastindex or 0]
            if not getattr(exists, kind)(name):
                yield f"there is no {kind} {name}"


def _wrong_code(page: str, text: str, exists: _Exists) -> Iterator[str]:
    for block in _BLOCK.finditer(text):
        comment, kind, code = block["comment"] or "", block["kind"], block["text"]
        first = code.strip().partition("\n")[0]
        if kind not in _CHECKS:
            yield f"the block {first!r} has no language of {', '.join(_CHECKS)}"
        elif comment.startswith("e2e/"):
            lines = exists.lines(comment)
            yield from (f"{comment} has no line {line!r}" for line in code.splitlines() if line not in lines)
        elif comment and comment not in NOT_RUN and page not in _STEPS:
            yield f"no test makes a file or a step of {comment!r}; a reason is one of {NOT_RUN}"
        else:
            try:
                _CHECKS[kind](code, exists)
            except (SyntaxError, ValueError, configparser.Error) as error:
                yield f"the block {first!r}: {error}"


class _Exists:
    """Knows what the repository has."""

    def __init__(self, root: Path, texts: Iterable[str]) -> None:
        self.root = root
        self.reference = (root / "docs" / "reference.md").read_text("utf-8")
        starlark = (root / "docs" / "api" / "starlark.md").read_text("utf-8")
        self.rules = {name: re.findall(r"^    (\w+)", text, re.MULTILINE) for name, text in _RULE.findall(starlark)}
        blocks = [block for text in texts for block in _BLOCK.finditer(text)]
        self._settings = (root / "dist_testing.bazelrc").read_text("utf-8") + "".join(
            block["text"] for block in blocks if block["kind"] == "bazelrc"
        )

    def option(self, name: str) -> bool:
        return re.search(f"`{name}[=`]", self.reference) is not None

    def variable(self, name: str) -> bool:
        return f"`{name}`" in self.reference or name in sources(self.root / "wheels")

    def configuration(self, name: str) -> bool:
        return re.search(rf"^\w+:{name} ", self._settings, re.MULTILINE) is not None

    def label(self, label: str) -> bool:
        package, _, name = label.removeprefix("@dist_testing//").partition(":")
        folder = self.root / package
        if not name:
            return (folder / "BUILD.bazel").is_file()
        # Functions of this one declare targets in several packages.
        files = [*folder.glob("BUILD.bazel"), *folder.glob("*.bzl"), self.root / "dist_testing/private/gpus.bzl"]
        rules = "".join(path.read_text("utf-8") for path in files)
        made = (re.sub(r"\\\{\w*\\\}|%s", r"\\w+", re.escape(text)) for text in re.findall(r'"([^"\n]+)"', rules))
        return (folder / name).is_file() or any(re.fullmatch(text, name) for text in made)

    def module(self, name: str) -> bool:
        return self.folder(name) is not None

    def folder(self, module: str) -> Path | None:
        path = self.root.joinpath(*module.split("."))
        return path if path.is_dir() else path.with_suffix(".py") if path.with_suffix(".py").is_file() else None

    def lines(self, name: str) -> set[str]:
        return set((self.root / name).read_text("utf-8").splitlines()) if self.file(name) else set()

    def file(self, name: str) -> bool:
        return (self.root / name).is_file()


def sources(place: Path) -> str:
    """Return the sources of a program or a package."""
    files = [place] if place.is_file() else sorted((*place.rglob("*.py"), *place.rglob("*.bzl")))
    return "".join(path.read_text("utf-8") for path in files)


def _python(code: str, _: _Exists) -> None:
    ast.parse(textwrap.dedent(code))


def _starlark(code: str, exists: _Exists) -> None:
    # "..." stands for more arguments.
    tree = ast.parse(textwrap.dedent(re.sub(r"^\s+\.\.\.$", "", code, flags=re.MULTILINE)))
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and (name := ast.unparse(call.func)) in exists.rules:
            for word in call.keywords:
                if word.arg not in exists.rules[name]:
                    raise ValueError(f"{name} has no argument {word.arg}")


def _shell(code: str, exists: _Exists) -> None:
    for line in re.sub(r"\\\n\s*", " ", code).splitlines():
        words = shlex.split(line, comments=True)
        for program in _programs(words):
            _program(program, exists)


def _console(code: str, exists: _Exists) -> None:
    _shell("\n".join(line.removeprefix("$ ") for line in code.splitlines() if line.startswith("$ ")), exists)


def _programs(words: list[str]) -> Iterator[list[str]]:
    """Yield the commands of a line, and those that a command starts after "--"."""
    at = next((at for at, word in enumerate(words) if word in ("&&", "|", "--")), len(words))
    if words[at : at + 1] == ["--"] and words[1:2] == ["run"]:
        at = len(words)
    if words:
        yield words[:at]
        yield from _programs(words[at + 1 :])


def _program(words: list[str], exists: _Exists) -> None:
    """Check the options of a program of the library."""
    if "-m" in words and (name := words[words.index("-m") + 1]).startswith("dist_testing"):
        place, options = exists.folder(name), words[words.index("-m") + 2 :]
        if name.rpartition(".")[2] in _RUNNERS:
            options = options[: next((at for at, word in enumerate(options) if word[:1] != "-"), None)]
    elif words[1:2] == ["run"] and words[2].startswith("@dist_testing//"):
        place = exists.root / words[2].removeprefix("@dist_testing//").partition(":")[0]
        options = [word for word in words[3:] if not _BAZELS.match(word)]
    elif words[0].startswith("python") and (found := _NAMES["file"].search(" ".join(words))):
        place, options = (exists.root / found[1]).parent, words[2:]
    else:
        return
    text = sources(place) if place else ""
    # A program of tools/ can be one of the library's.
    used = map(exists.folder, re.findall(r"from (dist_testing\.\w+)", text))
    text += "".join(sources(module) for module in used if module)
    for option in (word.partition("=")[0] for word in options if word.startswith("--") and word != "--"):
        if not re.search(rf"""["']{option}["'=]""", text):
            raise ValueError(f"{' '.join(words[:3])} has no option {option}")


_CHECKS: dict[str, Callable[[str, _Exists], object]] = {
    "python": _python,
    "starlark": _starlark,
    "yaml": lambda code, _: None,
    "toml": lambda code, _: tomllib.loads(code),
    "json": lambda code, _: json.loads(code),
    "ini": lambda code, _: configparser.ConfigParser(strict=False).read_string(code),
    "sh": _shell,
    "bash": _shell,
    "console": _console,
    "bazelrc": lambda code, _: None,
    "text": lambda code, _: None,
}
