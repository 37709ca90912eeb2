"""Writes the capability matrix: what every cell of a backend did. `page` makes HTML of it.

It also shows whether the features that the backend declares are true.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from dist_testing.conformance.cell import Result, Status, matches
from dist_testing.conformance.expectations import Expectations
from dist_testing.core.ground.backends import Backend
from dist_testing.core.ground.codec import WrongValueError, shape_of
from dist_testing.core.ground.errors import ReportError

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


def operations(matrix: Matrix) -> dict[str, Counter[str]]:
    """Return the counts of statuses by operation, sorted by name."""
    found: dict[str, Counter[str]] = {}
    for name, cell in sorted(matrix.cells.items()):
        counts = found.setdefault(name.partition("/")[0], Counter())
        counts[cell.status.value] += 1
        counts["deviations"] += cell.deviates
    return found


def markdown(matrix: Matrix) -> str:
    """Return the matrix as Markdown: one line per operation, then the deviations by reason."""
    statuses = [status.value for status in Status]
    lines = [
        f"# {matrix.title}",
        "",
        f"{len(matrix.cells)} cells: {matrix.counts_text()}",
        "",
        *([matrix.remark(), ""] if matrix.remark() else []),
        f"| operation | {' | '.join(statuses)} | deviations |",
        "|---|" + "---|" * (len(statuses) + 1),
    ]
    for operation, counts in operations(matrix).items():
        numbers = " | ".join(str(counts[status] or "") for status in statuses)
        lines.append(f"| `{operation}` | {numbers} | {counts['deviations'] or ''} |")
    by_reason: dict[tuple[str, str, str], list[str]] = {}
    for name, cell in matrix.deviations().items():
        by_reason.setdefault((cell.reason or "not declared", cell.link, cell.status.value), []).append(name)
    if by_reason:
        lines += [
            "",
            "## Deviations",
            "",
            "| status | reason | where to read | cells | for example |",
            "|---|---|---|---|---|",
        ]
    for (reason, link, status), names in by_reason.items():
        lines.append(f"| {status} | {_cell(reason)} | {_cell(link)} | {len(names)} | `{names[0]}` |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


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
