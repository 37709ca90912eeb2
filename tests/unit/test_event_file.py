"""The file of events: written whatever happens, and read whatever it holds."""

from __future__ import annotations

import errno
import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dist_testing import event_file
from dist_testing.core.events.event import SCHEMA, CaseRecorded, CaseStarted, Event, RunEnded, RunStarted, StreamCut
from dist_testing.core.ground.errors import ReportError
from dist_testing.core.ground.record import CaseRecord
from dist_testing.event_file import EventFile, read_events
from tests.support.results import refusal

_START = RunStarted(0.5, SCHEMA, 1.5e9, "", "gloo", {"python": "3.12.1"})
_NAMES = ["events.jsonl", "events.jsonl.gz"]


def _write(path: Path, *events: Event, limit_bytes: int = 1 << 20) -> None:
    file = EventFile(path, limit_bytes)
    for event in events:
        file(event)
    file.close()


@pytest.mark.parametrize("name", _NAMES)
def test_what_is_written_is_in_the_file_at_once(tmp_path: Path, name: str) -> None:
    """The runner can be killed at any time; the last lines matter most. Lines of two runs would be of neither."""
    path = tmp_path / name
    _write(path, _START, *(CaseStarted(1.0, "a") for _ in range(100)))
    # Also what no terminal can show.
    events = [_START, CaseStarted(1.0, "a.py::b[\udcff\n\u2028]"), RunEnded(2.0, 0)]
    file = EventFile(path)
    for number, event in enumerate(events, 1):
        file(event)
        assert read_events(path) == events[:number]
    file.close()
    # zcat and jq are how people look at it.
    data = path.read_bytes()
    lines = (gzip.decompress(data) if name.endswith("gz") else data).decode().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["run_started", "case_started", "run_ended"]


@pytest.mark.parametrize("name", _NAMES)
def test_a_full_file_says_so_in_its_last_line(tmp_path: Path, name: str) -> None:
    """A run that goes on for ever must not fill the disk, and its file must not pass for complete."""
    limit_bytes = 4096
    _write(tmp_path / name, _START, *(CaseStarted(float(n), "a") for n in range(1000)), limit_bytes=limit_bytes)
    events = read_events(tmp_path / name)
    assert isinstance(events[-1], StreamCut)
    assert events[-1].limit_bytes == limit_bytes
    assert len(events) > 10
    if name == "events.jsonl":
        assert (tmp_path / name).stat().st_size <= limit_bytes


def test_a_long_text_keeps_its_beginning_and_its_end(tmp_path: Path) -> None:
    """A failure's report can have any size; its first and last lines say most."""
    text = "first" + "x" * 10_000_000 + "last"
    _write(tmp_path / "e", _START, CaseRecorded(1.0, CaseRecord("a", "failed", text=text)), limit_bytes=1 << 30)
    _, event = read_events(tmp_path / "e")
    assert isinstance(event, CaseRecorded)
    assert event.record.text.startswith("first")
    assert event.record.text.endswith("last")
    assert (tmp_path / "e").stat().st_size < 100_000


@pytest.mark.parametrize("name", ["missing/e", "", "fifo", "socket"])
def test_a_path_that_cannot_be_written_is_an_error_at_once(tmp_path: Path, name: str) -> None:
    """Not at the end of an hour; and a pipe that no one reads, or whose reader stops, must not hold the run."""
    os.mkfifo(tmp_path / "fifo")
    os.mknod(tmp_path / "socket", 0o140600)
    with pytest.raises(OSError, match=r"."):
        EventFile(tmp_path / name)
    if name == "fifo":
        reader = os.open(tmp_path / name, os.O_RDONLY | os.O_NONBLOCK)
        with pytest.raises(OSError, match="neither a file nor a device"):
            EventFile(tmp_path / name)
        os.close(reader)


@pytest.mark.parametrize("name", _NAMES)
def test_a_full_disk_is_an_error_of_the_sink(tmp_path: Path, name: str) -> None:
    """The stream drops the sink; to close the file does not fail a second time."""
    os.symlink("/dev/full", tmp_path / name)
    file = EventFile(tmp_path / name)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        file(_START)
    file.close()
    file.close()


@pytest.mark.parametrize("name", _NAMES)
def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path, name: str) -> None:
    """The runner was killed, or the disk is full."""
    events = [_START, CaseStarted(1.0, "a"), CaseStarted(2.0, "b")]
    file = EventFile(tmp_path / name)
    for event in events:
        file(event)
    data = (tmp_path / name).read_bytes()
    file.close()
    for cut in range(1, 12):
        (tmp_path / name).write_bytes(data[:-cut])
        # The last bytes of a compressed line can be without a text.
        assert read_events(tmp_path / name) in (events[:2], events[: 3 if name.endswith("gz") else 2])


_LINE = json.dumps(_START.to_wire()).encode() + b"\n"


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("missing", None, "cannot be read: "),
        (".", None, "cannot be read: "),
        ("e", b"", "the file contains no event"),
        ("e.gz", b"", "the file contains no event"),
        ("e", _LINE[:-1], "the file contains no event"),
        ("e.gz", gzip.compress(_LINE, mtime=0)[:9], "the file contains no event"),
        ("e", b"hello\n", "line 1 is not an event: Expecting value"),
        ("e", b'{"event": "run_ended", "at_s": 1, "exit_code": 0}\n', 'line 1 is not an event: expected "run_started"'),
        ("e", b'{"event": "run_started", "schema": "1"}\n', 'line 1 is not an event: expected "run_started"'),
        ("e", b"[]\n", 'line 1 is not an event: expected "run_started"'),
        (
            "e",
            b'{"event": "run_started", "schema": 2}\n',
            "line 1 is not an event: run_started: missing fields ['at_s', ",
        ),
        ("e", b'{"event": "run_started", "schema": 1, "at_s": 1}\n', "An older version has written it"),
        ("e", _LINE + b"\n" + _LINE, "line 2 is not an event"),
        ("e", _LINE + b"\xff\xfe\n", "line 2 is not an event"),
        ("e", _LINE + b"[" * 100_000 + b"\n", "line 2 is not an event"),
        ("e", _LINE + b'{"event": "run_ended", "at_s": 1, "exit_code": null}\n', "exit_code = None; expected"),
        ("e", b'{"event": "run_started", "schema": 99}\n', "its schema is 99; this version of dist_testing reads 2"),
        ("e.gz", _LINE, "cannot be read: "),
        ("e", b"\x1f\x8b" + _LINE, "cannot be read: "),
        ("e.gz", gzip.compress(_LINE, mtime=0)[:-6] + b"??????", "cannot be read: "),
    ],
)
def test_a_file_that_is_none_of_ours_is_told(tmp_path: Path, name: str, data: bytes | None, message: str) -> None:
    """What was found, why, and the way out; no traceback."""
    if data is not None:
        (tmp_path / name).write_bytes(data)
    text = refusal(lambda: read_events(tmp_path / name), ReportError)
    assert text.startswith(f"{tmp_path / name}: ")
    assert message in text


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report reads files that others have sent."""
    monkeypatch.setattr(event_file, "_MAX_READ_BYTES", 1 << 22)
    (tmp_path / "e.gz").write_bytes(gzip.compress(_LINE + b"x" * (1 << 23), mtime=0))
    with pytest.raises(ReportError, match="more than 4 MiB, unpacked"):
        read_events(tmp_path / "e.gz")


@settings(derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=300), st.sampled_from(["e", "e.gz"]))
def test_any_bytes_give_events_or_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, name: str
) -> None:
    """Never a traceback, never a hang."""
    folder = tmp_path_factory.mktemp("any")
    for content in (data, _LINE + data, gzip.compress(_LINE, mtime=0)[:20] + data):
        (folder / name).write_bytes(content)
        try:
            events = read_events(folder / name)
        except ReportError:
            continue
        assert events[0] == _START
