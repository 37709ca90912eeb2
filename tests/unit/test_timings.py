"""The file of recorded case durations."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from dist_testing.core.bazel.timings import read_timings
from dist_testing.core.ground.errors import ReportError
from tests.support.results import refusal


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "Expecting value"),
        ('{"schema": 1, "targets": {"//a:a": {', "Expecting property name"),
        ("[]", "schema = []"),
        ("{}", "schema = None"),
        ('{"schema": 2, "targets": {}}', "schema = 2, and this version reads schema 1"),
        ('{"schema": 1}', "targets = None"),
        ('{"schema": 1, "targets": {"//a:a": [1]}}', "//a:a = [1], and not an object"),
        *(
            (f'{{"schema": 1, "targets": {{"//a:a": {{"c": {value}}}}}}}', "//a:a, c: ")
            for value in ('"1"', "-1", "NaN", "Infinity", "true", "null", "1e999", str(10**400))
        ),
        ("[" * 100_000, ""),
        ("\udcff\udcfe", "invalid start byte"),
        (None, "No such file"),
    ],
)
def test_an_invalid_file_is_refused(tmp_path: Path, text: str | None, said: str) -> None:
    """If this fails, a file that was merged wrongly puts all cases into one shard, or causes a traceback."""
    path = tmp_path / "timings.json"
    if text is not None:
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
    first = refusal(lambda: read_timings(path), ReportError).partition("\n")[0]
    assert first.startswith(f"{path}: no usable timings: ")
    assert said in first


def test_every_finite_duration_is_a_duration(tmp_path: Path) -> None:
    """If this fails, a case that a coarse clock measured as zero makes the whole file invalid."""
    path = tmp_path / "timings.json"
    timings = {"//a:a": {"none": 0, "longest": sys.float_info.max}}
    path.write_text(json.dumps({"schema": 1, "targets": timings}), encoding="utf-8")
    assert read_timings(path) == timings
