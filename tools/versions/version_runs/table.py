"""The table of results: a JSON file that runs add to, and the page that is made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from version_runs.errors import VersionsError
from version_runs.suites import LIMITS_S

_SCHEMA = 2
_HEAD = """\
# Which versions of torch and Python were tried?

`python3 tools/versions/versions.py` makes an environment for each pair, with the wheels of the package registry, and
runs this library's own suites in it: `tests/unit`, `tests/threaded`, `tests/compat` and `tests/process`. It adds the
results to [versions_tried.json](versions_tried.json), and writes this page from that file. CI runs the versions of
`requirements.txt` with every change; this table says what happened with the others on the date of the row. With
`--oldest`, the environment has the oldest pytest, psutil and bazel-runfiles that `pyproject.toml` admits; otherwise it
has the newest.

A cell has the number of passed tests, and of failed ones if there are any. Tests skip what the machine lacks, such as
GPUs.
"""


def read(file: Path) -> dict[str, Any]:
    """Return the table; an empty one if there is no file.

    Raises:
        VersionsError: If the file is not such a table.
    """
    if not file.exists():
        return {"schema": _SCHEMA, "pairs": [], "notes": []}
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
        is_table = table["schema"] == _SCHEMA and isinstance(table["pairs"], list) and isinstance(table["notes"], list)
    except (ValueError, KeyError, TypeError):
        is_table = False
    if not is_table:
        raise VersionsError(
            f"'{file}' is no table of schema {_SCHEMA}.",
            "It is damaged, or another version of this program wrote it.",
            "Restore it from the repository.",
        )
    return dict(table)


def add(table: dict[str, Any], pair: Mapping[str, Any]) -> None:
    """Put the result of a pair into the table, in the place of an older one of the same pair.

    Suites that did not run this time keep their result if it is of the same day and the same build of torch: a row has
    one date, and what ran with older code is no result of it.
    """
    pairs = table["pairs"]
    merged = dict(pair)
    for old in pairs:
        if _key(old) == _key(pair) and all(old.get(name) == pair.get(name) for name in ("build", "date")):
            merged["suites"] = {**old["suites"], **pair["suites"]}
    table["pairs"] = sorted([*(old for old in pairs if _key(old) != _key(pair)), merged], key=_order)


def write(table: Mapping[str, Any], file: Path, page_file: Path) -> None:
    """Write the JSON file and the page."""
    file.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    page_file.write_text(page(table), encoding="utf-8")


def page(table: Mapping[str, Any]) -> str:
    """Return the page in Markdown."""
    tried = [pair for pair in table["pairs"] if not pair["problem"]]
    refused = [pair for pair in table["pairs"] if pair["problem"]]
    parts = [_HEAD]
    rows = [
        f"| {pair['build']} | {pair['python_full']} ({pair['python_source']}) | {pair['pytest']} | "
        + " | ".join(_cell(pair["suites"].get(suite)) for suite in LIMITS_S)
        + f" | {pair['date']} | {pair['machine']} |"
        for pair in tried
    ]
    heads = ["torch", "Python", "pytest", *LIMITS_S, "date", "machine"]
    parts.append(_table(heads, rows))
    failures = [
        f"- torch {pair['build']}, Python {pair['python_full']}, pytest {pair['pytest']}: `{name}`: {_plain(message)}"
        for pair in tried
        for result in pair["suites"].values()
        for name, message in result["failures"]
    ]
    if failures:
        parts.append("## What fails?\n\n" + "\n".join(failures) + "\n")
    if table["notes"]:
        parts.append("## Notes\n\n" + "\n".join(f"- {note}" for note in table["notes"]) + "\n")
    if refused:
        rows = [
            f"| {pair['torch']} | {pair['python']} | {_plain(pair['problem'])} | {pair['date']} |" for pair in refused
        ]
        parts.append("## What could not be tried?\n\n" + _table(["torch", "Python", "reason", "date"], rows))
    return "\n".join(parts)


def _cell(result: Mapping[str, Any] | None) -> str:
    if result is None:
        return "not run"
    text = str(result["passed"])
    if result["failed"]:
        text += f", **{result['failed']} failed**"
    if result["end"] != "whole":
        # The end of pytest's output is in the JSON file.
        text += f" ({_plain(result['end'].partition(':')[0])})"
    return text


def _table(heads: Sequence[str], rows: Sequence[str]) -> str:
    return f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}\n" + "".join(f"{row}\n" for row in rows)


def _plain(text: str) -> str:
    """Return a text that has no meaning to Markdown's tables and no line break."""
    return " ".join(text.replace("|", "/").replace("<", "&lt;").split())


def _key(pair: Mapping[str, Any]) -> tuple[str, str, bool]:
    return pair["torch"], pair["python"], pair["oldest"]


def _order(pair: Mapping[str, Any]) -> tuple[list[int], list[int], str, bool]:
    def numbers(version: str) -> list[int]:
        return [int(part) for part in version.rstrip("t").split(".")] if version[0].isdigit() else [10**6]

    return numbers(pair["torch"]), numbers(pair["python"]), pair["python"], pair["oldest"]
