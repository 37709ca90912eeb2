"""Writes the capability matrix: what every cell of a backend did, as JSON, Markdown and HTML.

It also shows whether the features that the backend declares are true.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from string import Template
from typing import ClassVar

from dist_testing.conformance.cell import Result, Status, matches
from dist_testing.conformance.expectations import Expectations
from dist_testing.core.ground.backends import Backend
from dist_testing.core.ground.codec import WrongValueError, shape_of
from dist_testing.core.ground.errors import ReportError, UsageError

SCHEMA = 1
# Limits of the relay: failed tests in a payload, and the message of each, 1 KB of at most four bytes a character.
_RELAY_TESTS = 1000
_RELAY_MESSAGE = 250
# Feature to the cells that show it. Every feature of a declaration has an entry here or in `WITHOUT_CELLS`.
FEATURE_CELLS = {
    "coalesced_all_reduce": "_coalescing_manager/all_reduce_*/w2",
    "coalescing": "_coalescing_manager/with_device/w2",
    "cpu_tensors": "all_gather/handle_completes/w2",
    "monitored_barrier": "monitored_barrier/*/w[23]",
    "moves_data": "all_gather/outputs_are_views_of_one_tensor/w2",
    "recv_any_source": "recv/from_anybody/w2",
    "uneven_gather": "all_gather/uneven/w[23]",
}
# Feature to the reason why no cell can show it.
WITHOUT_CELLS = {"needs_no_gloo": "a cell sees one build of torch, and the feature is about builds without gloo"}


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """What one cell did, as it stands in matrix.json."""

    is_open: ClassVar[bool] = True

    status: Status
    contract: Status  # the status that the contract asks for
    row: str  # its row of the contract
    seconds: float
    as_expected: bool  # whether the status agrees with the expectation file
    detail: str = ""
    group_lives: bool | None = None
    # Of a row of the expectation file. A backend whose file says that it was not run has that reason.
    reason: str = ""
    link: str = ""

    @property
    def deviates(self) -> bool:
        """Whether it ended otherwise than the contract asks for."""
        return self.status not in (self.contract, Status.NOT_RUN)


@dataclass(slots=True)
class Matrix:
    """The results of one backend."""

    is_open: ClassVar[bool] = True

    backend: str  # its name
    torch: str  # version of torch
    cells: dict[str, MatrixCell] = field(default_factory=dict)  # by name

    def add(self, result: Result, expectations: Expectations) -> None:
        """Add a result."""
        row = expectations.row_of(result.cell)
        self.cells[result.cell.name] = MatrixCell(
            result.status,
            result.cell.contract,
            result.cell.row,
            result.seconds,
            as_expected=not expectations.problem(result),
            detail=result.detail,
            group_lives=result.lives,
            reason=row.reason if row is not None else expectations.not_run,
            link=row.link if row is not None else "",
        )

    def merge(self, other: Matrix) -> None:
        """Add the cells of another part of the same run, such as another shard.

        Raises:
            ReportError: If it is of another backend or another torch.
        """
        if (other.backend, other.torch) != (self.backend, self.torch):
            raise ReportError(
                f"The matrices of {self.backend} on torch {self.torch} and of {other.backend} on torch {other.torch} "
                "are not parts of one run.\n"
                "Shards of one target have the same backend and torch.\n"
                "Merge the files of one run only."
            )
        self.cells |= other.cells

    def counts(self) -> Counter[str]:
        """Return how many cells ended how."""
        return Counter(cell.status.value for cell in self.cells.values())

    @property
    def title(self) -> str:
        """The heading of pages about it."""
        return f"Capability matrix of {self.backend}, torch {self.torch}"

    def counts_text(self) -> str:
        """Return the counts as text, such as "1 refuses, 7 works"."""
        return ", ".join(f"{count} {name}" for name, count in sorted(self.counts().items()))

    def remark(self) -> str:
        """Return a sentence for a matrix without any cell that has run; "" for others."""
        if any(cell.status is not Status.NOT_RUN for cell in self.cells.values()):
            return ""
        details = dict.fromkeys(cell.detail for cell in self.cells.values())
        return f"No cell has run, so nothing is known about the backend: {'; '.join(details)}"

    def deviations(self) -> dict[str, MatrixCell]:
        """Return the cells that ended otherwise than the contract asks for."""
        return {name: cell for name, cell in self.cells.items() if cell.deviates}

    def to_json(self) -> str:
        """Return the text of matrix.json."""
        write = shape_of(MatrixCell).write
        assert write is not None
        content = {
            "schema": SCHEMA,
            "backend": self.backend,
            "torch": self.torch,
            "counts": dict(sorted(self.counts().items())),
            "cells": {name: write(cell) for name, cell in sorted(self.cells.items())},
        }
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"

    def to_relay(self) -> str:
        """Return the text of crcr.json: what PyTorch's cross-repository CI relay takes of a finished run (RFC-0054).

        A cell is passed if it ended as the expectation file says. The relay takes at most 1,000 failed tests, each with
        a message of at most 1 KB.
        """
        ran = {name: cell for name, cell in self.cells.items() if cell.status is not Status.NOT_RUN}
        failed = {name: cell for name, cell in sorted(self.cells.items()) if not cell.as_expected}
        content = {
            "status": "completed",
            "conclusion": "failure" if failed or not ran else "success",
            "test_results": {
                "passed": len(ran.keys() - failed.keys()),
                "failed": len(failed),
                "skipped": len(self.cells.keys() - ran.keys() - failed.keys()),
                "total": len(self.cells),
            },
            "failed_tests": [
                {"name": name, "message": f"{cell.status.value}: {cell.detail}"[:_RELAY_MESSAGE]}
                for name, cell in itertools.islice(failed.items(), _RELAY_TESTS)
            ],
            "environment": {"backend": self.backend, "torch": self.torch},
        }
        return json.dumps(content, indent=1) + "\n"


def read_matrix(path: str | Path) -> Matrix:
    """Read a matrix.json.

    Raises:
        ReportError: If it is not one, or of another schema.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']}; expected {SCHEMA}")
        matrix: Matrix = shape_of(Matrix).read(content)
    except (OSError, ValueError, KeyError, TypeError, WrongValueError) as error:
        raise ReportError(
            f"{path}: this is no capability matrix: {type(error).__name__}: {error}.\n"
            "The kit writes matrix.json, with a schema number and an object for each cell.\n"
            "Give a file that `python -m dist_testing.conformance --out=DIR` of this version has written."
        ) from error
    return matrix


def difference(before: Matrix, after: Matrix) -> dict[str, tuple[str, str]]:
    """Return the cells that differ: name to the statuses before and after; "" where a matrix lacks the cell."""
    old, new = ({name: cell.status.value for name, cell in matrix.cells.items()} for matrix in (before, after))
    pairs = {name: (old.get(name, ""), new.get(name, "")) for name in sorted(old.keys() | new.keys())}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


_STATUSES = [status.value for status in Status]
_PAGE = Template("""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>$title</title><style>
body{font:14px/1.4 system-ui,sans-serif;margin:2em;max-width:100em}
table{border-collapse:collapse;margin:1em 0}
td,th{border:1px solid #ccc;padding:2px 8px;text-align:left;vertical-align:top}
td.n{text-align:right}.works{background:#e3f6e3}.refuses{background:#fff3cd}.wrong,.crashes{background:#f8d0d0}
.hangs{background:#f3d3f3}.not-run{background:#eee}code{font-size:12px}summary{cursor:pointer}
</style></head><body><h1>$title</h1><p>$counts</p>$remark$difference
<h2>Deviations</h2>$deviations<h2>By operation</h2>$operations<h2>All cells</h2>$cells</body></html>
""")


def write_matrix(matrix: Matrix, folder: Path, before: Matrix | None = None) -> None:
    """Write a matrix in its forms to a folder, which is made if it is missing.

    `before` is another matrix, with which matrix.html compares.

    Raises:
        UsageError: If the files cannot be written.
    """
    texts = {
        "matrix.json": matrix.to_json(),
        "crcr.json": matrix.to_relay(),
        "matrix.md": markdown(matrix),
        "matrix.html": page(matrix, before),
    }
    with _writing(folder):
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")


def check_folder(folder: Path) -> None:
    """Make the folder of a matrix, and raise UsageError if no file can be written there: before the cells run."""
    with _writing(folder), tempfile.TemporaryFile(dir=folder):
        pass


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UsageError(
            f"{folder}: the matrix cannot be written: {error.strerror}.\n"
            "The folder is made if it is missing, and its files are replaced.\n"
            "Name a folder that you may write to."
        ) from error


def _operations(matrix: Matrix) -> list[list[str]]:
    """Return a row per operation: its name, the counts of statuses, and that of deviations; "" for none."""
    rows = []
    for operation, names in itertools.groupby(sorted(matrix.cells), lambda name: name.partition("/")[0]):
        cells = [matrix.cells[name] for name in names]
        counts = Counter(cell.status.value for cell in cells)
        numbers = [*(counts[status] for status in _STATUSES), sum(cell.deviates for cell in cells)]
        rows.append([operation, *(str(number or "") for number in numbers)])
    return rows


def markdown(matrix: Matrix) -> str:
    """Return the matrix as Markdown: one line per operation, then the deviations by reason."""
    by_reason: dict[tuple[str, str, str], list[str]] = {}
    for name, cell in matrix.deviations().items():
        by_reason.setdefault((cell.status.value, cell.reason or "not declared", cell.link), []).append(name)
    deviations = [[*reason, str(len(names)), f"`{names[0]}`"] for reason, names in by_reason.items()]
    operations = [[f"`{operation}`", *counts] for operation, *counts in _operations(matrix)]
    lines = [f"# {matrix.title}", "", f"{len(matrix.cells)} cells: {matrix.counts_text()}", ""]
    if matrix.remark():
        lines += [matrix.remark(), ""]
    lines += _markdown_table(["operation", *_STATUSES, "deviations"], operations)
    if deviations:
        header = ["status", "reason", "where to read", "cells", "for example"]
        lines += ["", "## Deviations", "", *_markdown_table(header, deviations)]
    return "\n".join(lines) + "\n"


def _markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    every = [header, *([text.replace("|", "\\|").replace("\n", " ") for text in row] for row in rows)]
    lines = [f"| {' | '.join(row)} |" for row in every]
    return [lines[0], f"|{'---|' * len(header)}", *lines[1:]]


def page(matrix: Matrix, before: Matrix | None = None) -> str:
    """Return the matrix as HTML, which needs no other file.

    It begins with the difference from `before`, such as the matrix of another torch.
    """
    compared = ""
    if before is not None:
        differs = [[name, *pair] for name, pair in difference(before, matrix).items()]
        names = [f"{one.backend}, torch {one.torch}" for one in (before, matrix)]
        body = _table(["cell", *names], differs) if differs else "<p>No cell differs.</p>"
        compared = f"<h2>Difference: {len(differs)} cells</h2>{body}"
    deviations = [
        [name, cell.status.value, cell.reason, cell.link, cell.detail]
        for name, cell in sorted(matrix.deviations().items())
    ]
    header = ["cell", "status", "reason", "where to read", "observed"]
    cells = ""
    for operation, of_it in itertools.groupby(sorted(matrix.cells), lambda name: name.partition("/")[0]):
        rows = [[name, matrix.cells[name].status.value] for name in of_it]
        table = _table(["cell", "status"], rows)
        cells += f"<details><summary>{escape(operation)} ({len(rows)})</summary>{table}</details>"
    return _PAGE.substitute(
        title=escape(matrix.title),
        counts=escape(f"{len(matrix.cells)} cells: {matrix.counts_text()}"),
        remark=f"<p><b>{escape(matrix.remark())}</b></p>" if matrix.remark() else "",
        difference=compared,
        deviations=_table(header, deviations) if deviations else "<p>None.</p>",
        operations=_table(["operation", *_STATUSES, "deviations"], _operations(matrix)),
        cells=cells,
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of HTML. The first text of a row is a name of code; statuses have their colours."""

    def column(text: str) -> str:
        kind = "n" if text.isdigit() else text.replace(" ", "-") if text in _STATUSES else ""
        return f'<td class="{kind}">{escape(text)}</td>'

    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = (f"<tr><td><code>{escape(name)}</code></td>{''.join(map(column, rest))}</tr>" for name, *rest in rows)
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"


def feature_problems(matrix: Matrix, backend: Backend) -> list[str]:
    """Return what is wrong with the features that a backend declares, each in three parts.

    A feature whose cells did not run is neither right nor wrong.
    """
    problems = []
    for feature, pattern in FEATURE_CELLS.items():
        statuses = {
            name: cell.status
            for name, cell in matrix.cells.items()
            if matches(name, [pattern]) and cell.status is not Status.NOT_RUN
        }
        # The cells move CPU tensors only where the backend's device is the CPU.
        if not statuses or (feature == "cpu_tensors" and backend.device != "cpu"):
            continue
        failed = sorted(name for name, status in statuses.items() if status is not Status.WORKS)
        if feature in backend.features and failed:
            problems.append(
                f"Backend {backend.name} declares the feature {feature}, but {failed[0]} {statuses[failed[0]].value}.\n"
                "Tests that ask for the feature would fail on this backend.\n"
                "Correct the backend, or drop the feature from its declaration."
            )
        if feature not in backend.features and not failed:
            problems.append(
                f"Backend {backend.name} does not declare the feature {feature}, but its cells work.\n"
                "Tests that ask for the feature leave this backend out.\n"
                "Add the feature to its declaration."
            )
    return problems
