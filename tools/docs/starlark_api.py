"""Writes the page of the Starlark API from the sources: `starlark_api.py <page> <public file> ...`.

It reads the files and does not load them. Bazel's own extractor (`starlark_doc_extract`) needs a target for every file
that is loaded, and the rule sets of other repositories do not offer these targets in every release. Starlark's grammar
is a part of Python's. A file exports all names that it binds without a leading underscore.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import docstrings

HEADER = """\
# Starlark API

<!-- Generated from the sources. Write it anew: ./bazelw run //tools/docs:starlark -->
"""

# Functions that make a rule or an extension -> their name on the page.
_KINDS = {
    "module_extension": "module extension",
    "provider": "provider",
    "repository_rule": "repository rule",
    "rule": "rule",
}


@dataclass(frozen=True, slots=True)
class Source:
    """A Starlark file."""

    label: str  # its label in this repository
    tree: ast.Module  # its syntax tree
    values: dict[str, ast.expr | ast.FunctionDef]  # Top-level name -> its value in the syntax tree
    loaded: dict[str, tuple[str, str]]  # loaded name -> the file's label and the name there


def read_source(label: str) -> Source:
    """Read the file of a label of this repository."""
    package, name = label.removeprefix("//").split(":")
    tree = ast.parse(Path(package, name).read_text(encoding="utf-8"), filename=label)
    values: dict[str, ast.expr | ast.FunctionDef] = {}
    loaded: dict[str, tuple[str, str]] = {}
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef):
            values[statement.name] = statement
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            values[statement.targets[0].id] = statement.value
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            loaded |= _loads(statement.value)
    return Source(label, tree, values, loaded)


def _loads(call: ast.Call) -> dict[str, tuple[str, str]]:
    if not isinstance(call.func, ast.Name) or call.func.id != "load":
        return {}
    file, *names = [_text(argument) for argument in call.args]
    return {name: (file, name) for name in names} | {
        keyword.arg: (file, _text(keyword.value)) for keyword in call.keywords if keyword.arg is not None
    }


def _text(node: ast.expr | None) -> str:
    """Return the value of a string, also of several strings joined by `+`."""
    if node is None:
        return ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    raise docstrings.ApiError(f"line {node.lineno}: expected a plain string, not {ast.unparse(node)}")


def _resolve(source: Source, name: str) -> tuple[Source, ast.expr | ast.FunctionDef]:
    """Return the definition of a name, in this file or in the file that it is loaded from."""
    value = source.values.get(name)
    if value is None and name in source.loaded:
        label, there = source.loaded[name]
        return _resolve(read_source(label), there)
    if isinstance(value, ast.Name):
        return _resolve(source, value.id)
    if value is None:
        raise docstrings.ApiError(f"{source.label}: nothing defines {name}")
    return source, value


def _call_arguments(call: ast.Call) -> dict[str, ast.expr]:
    return {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}


def _dict_items(node: ast.expr | None) -> Iterator[tuple[str, ast.expr]]:
    if node is None:
        return
    if not isinstance(node, ast.Dict):
        raise docstrings.ApiError(f"line {node.lineno}: expected a dict, not {ast.unparse(node)}")
    for key, value in zip(node.keys, node.values, strict=True):
        yield _text(key), value


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(docstrings.escaped, line))} |" for line in lines)


def _function_blocks(name: str, function: ast.FunctionDef) -> Iterator[str]:
    docstring = ast.get_docstring(function)
    if docstring is None:
        raise docstrings.ApiError(f"{name} has no docstring")
    defaults = {argument.arg: default for argument, default in _defaults(function.args)}
    names = [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]
    shown = [name if defaults[name] is None else f"{name} = {_unparse(defaults[name])}" for name in names]
    if function.args.kwonlyargs:
        shown.insert(len(function.args.args), "*")
    if function.args.kwarg:
        shown.append(f"**{function.args.kwarg.arg}")
    lines = "".join(f"    {argument},\n" for argument in shown)
    yield f"```starlark\n{name}(\n{lines})\n```" if shown else f"```starlark\n{name}()\n```"
    yield docstrings.markdown(docstring, without=["Args"])
    told = docstrings.entries(docstrings.split(docstring)[1].get("Args", ""))
    if missing := set(names) - set(told):
        raise docstrings.ApiError(f"the docstring of {name} does not describe {', '.join(sorted(missing))}")
    if told:
        yield _table(["argument", "what"], [[f"`{argument}`", text] for argument, text in told.items()])


def _defaults(arguments: ast.arguments) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    missing = len(arguments.args) - len(arguments.defaults)
    yield from zip(arguments.args, [*[None] * missing, *arguments.defaults], strict=True)
    yield from zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)


def _unparse(node: ast.expr | None) -> str:
    # Starlark's formatter writes strings with double quotes.
    return "" if node is None else ast.unparse(node).replace("'", '"')


def _attributes_table(node: ast.expr | None) -> str:
    rows = []
    for name, value in _dict_items(node):
        if not isinstance(value, ast.Call):
            raise docstrings.ApiError(f"line {value.lineno}: attribute {name} is not made by a call of attr")
        arguments = _call_arguments(value)
        kind = ast.unparse(value.func).removeprefix("attr.")
        needed = "mandatory" in arguments and ast.unparse(arguments["mandatory"]) == "True"
        rows.append([f"`{name}`", f"{kind}, mandatory" if needed else kind, _text(arguments.get("doc"))])
    return _table(["attribute", "type", "what"], rows)


def _call_blocks(source: Source, call: ast.Call) -> Iterator[str]:
    arguments = _call_arguments(call)
    maker = ast.unparse(call.func)
    kind = _KINDS.get(maker)
    if kind is None:
        raise docstrings.ApiError(f"{source.label}: line {call.lineno}: no page can be made of {maker}(...)")
    yield f"*{kind[0].upper()}{kind[1:]}.* {_text(arguments.get('doc'))}"
    if fields := [[f"`{name}`", _text(value)] for name, value in _dict_items(arguments.get("fields"))]:
        yield _table(["field", "what"], fields)
    if "attrs" in arguments:
        yield _attributes_table(arguments["attrs"])
    for name, value in _dict_items(arguments.get("tag_classes")):
        tag = _resolve(source, value.id)[1] if isinstance(value, ast.Name) else value
        if isinstance(tag, ast.Call):
            tag_arguments = _call_arguments(tag)
            yield f"#### `{name}`\n\n{_text(tag_arguments.get('doc'))}"
            yield _attributes_table(tag_arguments.get("attrs"))


def page(labels: Sequence[str]) -> str:
    """Return the page of some public files."""
    blocks = [HEADER.rstrip()]
    for label in labels:
        source = read_source(label)
        blocks.append(f"## `@dist_testing{label}`")
        blocks.append(docstrings.markdown(ast.get_docstring(source.tree) or ""))
        for name in sorted(source.values):
            if name.startswith("_"):
                continue
            where, value = _resolve(source, name)
            blocks.append(f"### {name}")
            if isinstance(value, ast.FunctionDef):
                blocks += _function_blocks(name, value)
            elif isinstance(value, ast.Call):
                blocks += _call_blocks(where, value)
            else:
                raise docstrings.ApiError(f"{label}: {name} is neither a function nor a rule")
    return "\n\n".join(blocks) + "\n"


if __name__ == "__main__":
    cause = "The page is made from the docstrings of the sources."
    sys.exit(docstrings.write_page("starlark_api.py", page, cause, "Correct the source."))
