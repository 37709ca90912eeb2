"""The quarantine file: its rows, its strict reader, which row names a case and where it applies, and rows as text."""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal, get_args

from dist_testing.core.ground.error_text import did_you_mean
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.record import name_parts
from dist_testing.gpus.devices import VENDORS, gpus_present, visible_gpus
from dist_testing.torch_version import COMPARISONS, torch_version

SCHEMA = 1
Mode = Literal["run", "skip"]
_BOUND = re.compile(rf"\s*({'|'.join(COMPARISONS)})\s*(\d+(?:\.\d+)*)\s*", re.ASCII)
# Versions are compared by so many numbers.
_NUMBERS = 4
_HEADER = re.compile(r"\s*\[\[\s*row\s*\]\]\s*(#.*)?")


@dataclass(frozen=True, slots=True)
class Conditions:
    """On what a row applies; None for anything. `torch` is as in ">=2.14,<2.16"."""

    torch: str | None = None
    backend: str | None = None
    gpu: str | None = None
    world_size: int | None = None
    nodes: int | None = None

    def unmet(self, *, backend: str | None = None, world_size: int | None = None, nodes: int | None = None) -> str:
        """Return the first condition that a case does not meet, with what was found; "" if it meets all.

        The arguments are those of the case; None for a test without ranks.
        """
        if self.torch is not None and not is_version_in(version := torch_version(), self.torch):
            return f"torch is {version}, and the row is for {self.torch}"
        for name, found in (("backend", backend), ("world_size", world_size), ("nodes", nodes)):
            wanted = getattr(self, name)
            if wanted is not None and wanted != found:
                return f"{name} is {'unknown' if found is None else found}, and the row is for {wanted}"
        if self.gpu is not None and not _has_gpu(self.gpu):
            return f"this machine has no GPU {self.gpu}"
        return ""


def is_bounds(text: str) -> bool:
    """Return whether a text is a list of bounds, as in ">=2.14,<2.16"."""
    return all(map(_BOUND.fullmatch, text.split(",")))


def is_version_in(version: str, bounds: str) -> bool:
    """Return whether a version is within bounds. Suffixes, as in "2.15.0a0+cpu", do not count."""
    found = _numbers(re.match(r"[\d.]*", version)[0])  # type: ignore[index]  # it matches any text
    return all(COMPARISONS[sign](found, _numbers(bound)) for sign, bound in _BOUND.findall(bounds))


def _numbers(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in version.split(".") if part]
    return tuple((numbers + [0] * _NUMBERS)[:_NUMBERS])


@functools.cache
def _has_gpu(name: str) -> bool:
    """Return whether a GPU that this process may use has a name: its architecture, or a part of its model's name."""
    gpus = [gpu for vendor in VENDORS.values() for gpu in visible_gpus(gpus_present(vendor=vendor), vendor=vendor).gpus]
    return any(name.lower() == gpu.arch.lower() or name.lower() in gpu.model.lower() for gpu in gpus)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the file."""

    file: Path
    number: int  # from 1, in the order of the file
    cases: tuple[str, ...]  # node ids and patterns
    mode: Mode  # "run": a failure does not decide about the run; "skip": the cases do not run
    reason: str
    link: str
    owner: str
    expires: date  # the last day on which it applies
    conditions: Conditions

    @property
    def name(self) -> str:
        """The row in words."""
        more = f" and {len(self.cases) - 1} more" if len(self.cases) > 1 else ""
        return f"{self.file.name}: row {self.number} ({self.cases[0]}{more})"


def is_text(value: object) -> bool:
    """Return whether a value is a text of one line that a terminal shows as it is, and not empty."""
    return isinstance(value, str) and value.isprintable() and bool(value.strip())


def _is_count(value: object) -> bool:
    return type(value) is int and value > 0


def _is_case(value: object) -> bool:
    return is_text(value) and not str(value).startswith(("/", "./", "../"))


# Key of a row -> what is expected, and whether a value is that. A datetime is a date for isinstance.
_KEYS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "cases": (
        "a list of node ids or patterns, from the root of the project",
        lambda value: isinstance(value, list) and bool(value) and all(map(_is_case, value)),
    ),
    "mode": ('"run" or "skip"', get_args(Mode).__contains__),
    "reason": ("a text in one line", is_text),
    "link": ("a text in one line", is_text),
    "owner": ("a text in one line", is_text),
    "expires": ("a date without quotes, as 2027-01-31", lambda value: type(value) is date),
    "torch": ('bounds of a version, as ">=2.14,<2.16"', lambda value: is_text(value) and is_bounds(value)),
    "backend": ("the name of a backend", is_text),
    "gpu": ("an architecture, or a part of a model's name", is_text),
    "world_size": ("a number from 1", _is_count),
    "nodes": ("a number from 1", _is_count),
}
_OPTIONAL = tuple(Conditions.__dataclass_fields__)


def read_rows(path: Path) -> tuple[Row, ...]:
    """Read a quarantine file; a UsageError names what is wrong in it."""
    return rows_in(read_text(path), path)


def read_text(path: Path) -> str:
    """Return the text of a file; a UsageError says why it cannot be read."""
    try:
        # With its own line ends.
        return path.read_bytes().decode()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} cannot be read: {error}.\n"
            "--dist-quarantine, the ini option dist_quarantine or a command names it as quarantine file.\n"
            "Correct the path, or leave the option out."
        ) from error


def rows_in(text: str, path: Path) -> tuple[Row, ...]:
    """Return the rows in the text of a file; `path` names it in errors."""
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _wrong(path, f"is not TOML: {error}", "Correct it there.") from error
    schema = content.pop("schema", None)
    if type(schema) is not int or schema != SCHEMA:
        raise _wrong(path, f"has schema = {schema!r}; expected {SCHEMA}", f"Write schema = {SCHEMA} at the top.")
    tables = content.pop("row", [])
    if unknown := next(iter(content), None):
        raise _wrong(
            path, f"has the key {unknown!r}", did_you_mean(unknown, ["row"], "It has schema and [[row]] alone.")
        )
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise _wrong(path, "has a `row` that is no list of tables", "Begin each row with a line [[row]].")
    rows = tuple(_row(path, number, table) for number, table in enumerate(tables, 1))
    named: dict[tuple[str, Conditions], Row] = {}
    for row in rows:
        for case in row.cases:
            if (other := named.setdefault((case, row.conditions), row)) is not row:
                raise two_rows(case, other, row)
    return rows


def two_rows(case: str, one: Row, other: Row) -> UsageError:
    """Return the error for a case that two rows name."""
    return UsageError(
        f"{one.file}: rows {one.number} and {other.number} are both for {case}.\n"
        "A case has one reason, owner and date at a time.\n"
        "Remove one of the rows, or give them conditions that exclude each other."
    )


def _row(path: Path, number: int, table: Mapping[str, Any]) -> Row:
    subject = f"row {number}"
    for key, value in table.items():
        if key not in _KEYS:
            raise _wrong(
                path, f"{subject} has the key {key!r}", did_you_mean(key, _KEYS, f"It has {', '.join(_KEYS)}.")
            )
        expected, fits = _KEYS[key]
        if not fits(value):
            raise _wrong(path, f"{subject} has {key} = {_shown(value)}; expected {expected}", "Correct the value.")
    for key, (expected, _) in _KEYS.items():
        if key not in table and key not in _OPTIONAL:
            raise _wrong(path, f"{subject} lacks {key}", f"Add {key}: {expected}.")
    cases = tuple(table["cases"])
    if len(set(cases)) < len(cases):
        raise _wrong(path, f"{subject} has a case twice in {_shown(table['cases'])}", "Remove one of the two.")
    conditions = Conditions(**{key: table[key] for key in _OPTIONAL if key in table})
    own = {key: table[key] for key in ("mode", "reason", "link", "owner", "expires")}
    return Row(path, number, cases, conditions=conditions, **own)


def _shown(value: object) -> str:
    text = str(value) if isinstance(value, date) else repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _wrong(path: Path, what: str, way_out: str) -> UsageError:
    return UsageError(f"{path}: {what}.\nThe quarantine file is strict: docs/quarantine.md has its keys.\n{way_out}")


def is_pattern(case: str) -> bool:
    """Return whether an entry of `cases` is a pattern."""
    return "*" in case or "?" in case


def pattern_of(case: str) -> re.Pattern[str]:
    """Return a pattern as a regular expression. Only `*` and `?` are special: names of cases have brackets."""
    parts = (".*" if part == "*" else "." if part == "?" else re.escape(part) for part in re.split(r"([*?])", case))
    return re.compile("".join(parts), re.DOTALL)


class RowFinder:
    """Finds the rows that name a case."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._exact: dict[str, list[Row]] = {}
        self._patterns: list[tuple[re.Pattern[str], str, Row]] = []
        for row in rows:
            for case in row.cases:
                if is_pattern(case):
                    self._patterns.append((pattern_of(case), case, row))
                else:
                    self._exact.setdefault(case, []).append(row)

    def find(self, nodeid: str) -> Iterator[tuple[str, Row]]:
        """Yield each entry of `cases` that fits a node id, and its row."""
        for name in _names(nodeid):
            for row in self._exact.get(name, ()):
                yield name, row
        for pattern, case, row in self._patterns:
            if pattern.fullmatch(nodeid):
                yield case, row


def _names(nodeid: str) -> Iterator[str]:
    """Yield the node ids that stand for a case: its own, and those of its function, its classes and its file."""
    parts, parameters = name_parts(nodeid)
    if parameters:
        yield nodeid
    for end in range(len(parts), 0, -1):
        yield "::".join(parts[:end])


def without_rows(text: str, path: Path, numbers: Collection[int]) -> str:
    """Return the text of a file without rows, by their numbers. All other text stays as it is.

    Comments directly above or below a row go with it; a blank line separates others from it.
    """
    lines = text.splitlines(keepends=True)
    starts = [place for place, line in enumerate(lines) if _HEADER.fullmatch(line.rstrip("\r\n"))]
    before = rows_in(text, path)
    kept = list(lines)
    # From the end, so that the places before stay right.
    for number in sorted(numbers, reverse=True):
        if number <= len(starts):
            begin, end = _span(lines, starts, number - 1)
            del kept[begin:end]
    shorter = "".join(kept)
    # A text in a row may look like the begin of another one, and rows may be written in another way.
    wanted = [row.cases for row in before if row.number not in numbers]
    if len(starts) != len(before) or [row.cases for row in rows_in(shorter, path)] != wanted:
        raise UsageError(
            f"{path}: {len(before)} rows, and {len(starts)} lines [[row]].\n"
            "A row is removed by its lines, from one line [[row]] to the next.\n"
            "Begin each row with a line [[row]], or remove the rows yourself."
        )
    return shorter


def _span(lines: list[str], starts: list[int], index: int) -> tuple[int, int]:
    """Return the first line of a row and the line after its last, with its comments and the blank lines after them."""
    begin = _comments_above(lines, starts[index])
    following = _comments_above(lines, starts[index + 1]) if index + 1 < len(starts) else len(lines)
    end = following
    # Back to the last line of a value.
    while lines[end - 1].strip() == "" or lines[end - 1].lstrip().startswith("#"):
        end -= 1
    while end < following and lines[end].strip():
        end += 1
    while end < len(lines) and not lines[end].strip():
        end += 1
    while end == len(lines) and begin and not lines[begin - 1].strip():
        begin -= 1
    return begin, end


def _comments_above(lines: list[str], place: int) -> int:
    while place and lines[place - 1].lstrip().startswith("#"):
        place -= 1
    return place


def row_text(comment: str, **values: object) -> str:
    """Return a row of the file, below a comment of one line."""
    # TOML reads texts, numbers and lists as JSON has them, and dates as Python shows them.
    lines = (
        f"{key} = {value if isinstance(value, date) else json.dumps(value, ensure_ascii=False)}"
        for key, value in values.items()
    )
    return "\n".join([f"# {comment}", "[[row]]", *lines])
