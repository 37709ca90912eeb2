"""Writes the files of a run: matrix.json, matrix.md and matrix.html."""

from __future__ import annotations

from pathlib import Path

from dist_testing.conformance.matrix import Matrix, markdown
from dist_testing.conformance.page import page
from dist_testing.core.ground.errors import UsageError


def write_matrix(matrix: Matrix, folder: Path, before: Matrix | None = None) -> None:
    """Write a matrix in its three forms.

    Args:
        matrix: The matrix.
        folder: Where the files go; made if it is missing.
        before: Another matrix, with which matrix.html compares. Default: none.

    Raises:
        UsageError: If the files cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "matrix.json").write_text(matrix.to_json(), encoding="utf-8")
        (folder / "matrix.md").write_text(markdown(matrix), encoding="utf-8")
        (folder / "matrix.html").write_text(page(matrix, before), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{folder}: the matrix cannot be written: {error.strerror}.\n"
            "The folder is made if it is missing, and its files are replaced.\n"
            "Name a folder that you may write to."
        ) from error
