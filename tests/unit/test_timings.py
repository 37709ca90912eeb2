"""The file of recorded case durations."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from dist_testing.core.bazel.timings import read_timings
from dist_testing.core.ground.errors import ReportError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file."""
    return tmp_path / "timings.json"


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
    ],
)
def test_an_invalid_file_is_refused(path: Path, text: str, said: str) -> None:
    """If this fails, a file that was merged wrongly puts all cases into one shard."""
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ReportError) as caught:
        read_timings(path)
    first, *rest = str(caught.value).splitlines()
    assert first.startswith(f"{path}: no usable timings: ")
    assert said in first
    assert len(rest) == 2


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_an_unreadable_file_is_refused(path: Path, content: bytes | None) -> None:
    """If this fails, a missing or damaged file causes a traceback."""
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ReportError, match="no usable timings"):
        read_timings(path)


def test_every_finite_duration_is_a_duration(path: Path) -> None:
    """If this fails, a case that a coarse clock measured as zero makes the whole file invalid."""
    timings = {"//a:a": {"none": 0, "longest": sys.float_info.max}}
    path.write_text(json.dumps({"schema": 1, "targets": timings}), encoding="utf-8")
    assert read_timings(path) == timings
