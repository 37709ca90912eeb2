"""Writes the files of a run: matrix.json, crcr.json, matrix.md and matrix.html, which needs no other file."""

from __future__ import annotations

import itertools
from html import escape
from pathlib import Path
from string import Template

from dist_testing.conformance.cell import Status
from dist_testing.conformance.matrix import Matrix, difference, markdown, operations
from dist_testing.core.ground.errors import UsageError

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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "matrix.json").write_text(matrix.to_json(), encoding="utf-8")
        (folder / "crcr.json").write_text(matrix.to_relay(), encoding="utf-8")
        (folder / "matrix.md").write_text(markdown(matrix), encoding="utf-8")
        (folder / "matrix.html").write_text(page(matrix, before), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{folder}: the matrix cannot be written: {error.strerror}.\n"
            "The folder is made if it is missing, and its files are replaced.\n"
            "Name a folder that you may write to."
        ) from error


def page(matrix: Matrix, before: Matrix | None = None) -> str:
    """Return the page of a matrix. It begins with the difference from `before`, such as that of another torch."""
    return _PAGE.substitute(
        title=escape(matrix.title),
        counts=escape(f"{len(matrix.cells)} cells: {matrix.counts_text()}"),
        remark=f"<p><b>{escape(matrix.remark())}</b></p>" if matrix.remark() else "",
        difference="" if before is None else _difference(before, matrix),
        deviations=_deviations(matrix),
        operations=_operations(matrix),
        cells=_cells(matrix),
    )


def _table(header: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{chr(10).join(row)}</tr>' for row in rows)}</table>"


def _status(status: str) -> str:
    return f'<td class="{escape(status.replace(" ", "-"))}">{escape(status)}</td>'


def _text(text: str) -> str:
    return f"<td>{escape(text)}</td>"


def _name(text: str) -> str:
    return f"<td><code>{escape(text)}</code></td>"


def _difference(before: Matrix, after: Matrix) -> str:
    rows = [[_name(name), _status(old), _status(new)] for name, (old, new) in difference(before, after).items()]
    names = [f"{matrix.backend}, torch {matrix.torch}" for matrix in (before, after)]
    body = _table(["cell", *names], rows) if rows else "<p>No cell differs.</p>"
    return f"<h2>Difference: {len(rows)} cells</h2>{body}"


def _deviations(matrix: Matrix) -> str:
    rows = [
        [_name(name), _status(cell.status.value), *map(_text, (cell.reason, cell.link, cell.detail))]
        for name, cell in sorted(matrix.deviations().items())
    ]
    return _table(["cell", "status", "reason", "where to read", "observed"], rows) if rows else "<p>None.</p>"


def _operations(matrix: Matrix) -> str:
    statuses = [status.value for status in Status]
    rows = [
        [_name(operation), *(f'<td class="n">{counts[status] or ""}</td>' for status in [*statuses, "deviations"])]
        for operation, counts in operations(matrix).items()
    ]
    return _table(["operation", *statuses, "deviations"], rows)


def _cells(matrix: Matrix) -> str:
    parts = []
    for operation, names in itertools.groupby(sorted(matrix.cells), lambda name: name.partition("/")[0]):
        rows = [[_name(name), _status(matrix.cells[name].status.value)] for name in names]
        parts.append(
            f"<details><summary>{escape(operation)} ({len(rows)})</summary>{_table(['cell', 'status'], rows)}</details>"
        )
    return "".join(parts)
