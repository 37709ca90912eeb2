"""The file of recorded case durations."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from dist_testing.core.bazel.timings import read_timings, write_timings
from dist_testing.core.ground.errors import ReportError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file."""
    return tmp_path / "timings.json"


def test_written_timings_can_be_read(path: Path) -> None:
    """If this fails, the timings that one program writes are lost for the program that reads them."""
    write_timings(path, {"//b:b": {"b.test_2": 0.5, "b.test_1[\u00fc]": 12}, "//a:a": {}})
    assert read_timings(path) == {"//a:a": {}, "//b:b": {"b.test_1[\u00fc]": 12, "b.test_2": 0.5}}


def test_the_file_is_the_same_for_the_same_timings(path: Path) -> None:
    """If this fails, equal timings change the checked-in file, which costs a review and new cache keys."""
    write_timings(path, {"//b:b": {"y": 1.0004, "x": 2.0}, "//a:a": {"z": 3.0}})
    first = path.read_text(encoding="utf-8")
    write_timings(path, {"//a:a": {"z": 3.0}, "//b:b": {"x": 2.0, "y": 1.0001}})
    assert path.read_text(encoding="utf-8") == first
    assert first.endswith("}\n")


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


def test_an_unwritable_file_is_refused(tmp_path: Path) -> None:
    """If this fails, a folder that does not exist causes a traceback."""
    with pytest.raises(ReportError, match="cannot be written"):
        write_timings(tmp_path / "no" / "such" / "folder.json", {})


def test_the_file_is_readable(path: Path) -> None:
    """If this fails, a reviewer cannot see which case became slower."""
    write_timings(path, {"//a:a": {"c[\u00fc]": 1.23456}})
    assert json.loads(path.read_text(encoding="utf-8"))["targets"] == {"//a:a": {"c[\u00fc]": 1.235}}
    assert '\n      "c[\u00fc]": 1.235\n' in path.read_text(encoding="utf-8")


def test_every_finite_duration_is_a_duration(path: Path) -> None:
    """If this fails, a case that a coarse clock measured as zero makes the whole file invalid."""
    timings = {"//a:a": {"none": 0, "longest": sys.float_info.max}}
    path.write_text(json.dumps({"schema": 1, "targets": timings}), encoding="utf-8")
    assert read_timings(path) == timings
