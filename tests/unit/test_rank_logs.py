"""Logs of ranks: limited while they are written, and read whatever a test has put in their place."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest

from dist_testing import log_limits
from dist_testing.core.engine.rank_logs import LiveOutput, open_regular, read_tail
from dist_testing.log_limits import LogLimits

_MIB = 1 << 20


def _limits(*logs: Path) -> LogLimits:
    return LogLimits(cast("Any", SimpleNamespace(logs=logs)))


def _on_disk(path: Path) -> int:
    return os.stat(path).st_blocks * 512


def _can_make_holes(folder: Path) -> bool:
    with open(folder / "probe", "wb") as file:
        file.write(b"x" * 2 * _MIB)
        try:
            log_limits._punch(file.fileno(), 0, _MIB)
        except OSError:
            return False
    return True


def test_a_log_keeps_its_beginning_and_its_end_while_it_grows(tmp_path: Path) -> None:
    """If this fails, a rank that prints in an endless loop fills the disk, and other tests fail by it."""
    if not _can_make_holes(tmp_path):
        pytest.skip("the file system makes no holes")
    path = tmp_path / "rank-0.log"
    # 128 ranks have the smallest limit for each.
    limits = _limits(path, *(tmp_path / f"rank-{rank}.log" for rank in range(1, 128)))
    assert limits.limit_bytes == 4 * _MIB
    with open(path, "ab", buffering=0) as log:
        log.write(b"first line\n")
        for number in range(40):
            log.write(b"%06d " % number * (_MIB // 7) + b"\n")
            limits.poll(1e9 + number)
            assert _on_disk(path) <= 4 * _MIB
        log.write(b"last line\n")
    assert path.stat().st_size > 39 * _MIB
    assert read_tail(path, 100).endswith("000039 \nlast line\n")
    with open_regular(path) as file:
        assert file.readline() == b"first line\n"
    (note,) = limits.notes()
    assert note == "Rank 0 has written 42 MB; of its output, only the first 1 MiB and the end were kept."


def test_live_output_leaves_out_what_the_limit_has_freed(tmp_path: Path) -> None:
    """If this fails, a rank that prints faster than `pytest -s` shows it fills the terminal with null characters."""
    if not _can_make_holes(tmp_path):
        pytest.skip("the file system makes no holes")
    path = tmp_path / "rank-0.log"
    limits = _limits(path, *(tmp_path / f"rank-{rank}.log" for rank in range(1, 100)))
    told: list[str] = []
    live = LiveOutput([path], lambda rank, line: told.append(line))
    with open(path, "ab", buffering=0) as log:
        log.write(b"first line\n")
        live.poll(1e9)
        log.write((b"x" * 1023 + b"\n") * 10 * 1024)
        limits.poll(1e9)
        log.write(b"last line\n")
    live.case_over()
    assert [line for line in told if line.strip("x")] == ["first line", "... 8388608 bytes left out ...", "last line"]


def test_a_log_is_emptied_where_the_file_system_makes_no_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, endless output fills a disk of another kind."""

    def refuse(*_: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(log_limits, "_punch", refuse)
    path = tmp_path / "rank-0.log"
    limits = _limits(path)
    monkeypatch.setattr(limits, "limit_bytes", 4 * _MIB)
    monkeypatch.setattr(limits, "_kept_bytes", _MIB)
    told: list[str] = []
    live = LiveOutput([path], lambda rank, line: told.append(line))
    with open(path, "ab", buffering=0) as log:
        for number in range(10):
            log.write(b"x" * _MIB)
            live.poll(1e9 + number)
            limits.poll(1e9 + number)
            assert path.stat().st_size <= 4 * _MIB
        log.write(b"last line\n")
    live.case_over()
    assert told[-1] == "last line"
    assert read_tail(path, 10) == "last line\n"
    assert limits.notes() == ["Rank 0 has written 10 MB; of its output, only the end was kept."]


def test_a_short_log_stays_whole_and_a_fast_one_is_looked_at_more_often(tmp_path: Path) -> None:
    """If this fails, ordinary output is lost, or a rank writes at the speed of the memory before the runner looks."""
    path = tmp_path / "rank-0.log"
    assert read_tail(path, 1000) == "", "the rank never started"
    limits = _limits(path)
    limits.poll(1e9)
    assert limits.next_s == 1e9 + 1.0
    path.write_bytes(b"x" * _MIB)
    limits.poll(2e9)
    assert path.read_bytes() == b"x" * _MIB
    assert limits.notes() == []
    with open(path, "r+b") as log:
        log.truncate(20 * _MIB)
    limits.poll(3e9)
    assert limits.next_s < 3e9 + 0.1
    limits.poll(3e9 + 0.01)
    assert limits.next_s < 3e9 + 0.1


def _link_without_end(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _link_to_a_file(path: Path) -> None:
    path.with_name("secret").write_text("of another test")
    path.symlink_to(path.with_name("secret"))


@pytest.mark.parametrize("replace", [os.mkfifo, Path.mkdir, _link_without_end, _link_to_a_file])
def test_what_a_test_puts_in_the_place_of_a_log_is_not_read(tmp_path: Path, replace: Callable[[Path], None]) -> None:
    """If this fails, the runner waits for ever for a pipe, reads a device without an end, or ends by an error."""
    path = tmp_path / "rank-0.log"
    replace(path)
    assert read_tail(path, 1000).startswith("(the output of this rank is lost: a test has replaced its log: ")
    with pytest.raises(OSError, match=r"rank-0\.log"):
        open_regular(path)
    limits = _limits(path)
    limits.poll(1e9)
    assert limits.notes() == []
    told: list[tuple[int, str]] = []
    live = LiveOutput([path], lambda rank, line: told.append((rank, line)))
    live.case_over()
    assert told == []


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_a_signal_when_a_log_has_just_been_opened_is_not_lost(tmp_path: Path) -> None:
    """If this fails, Ctrl-C sometimes has no effect on a run that shows the output of its ranks."""
    path = tmp_path / "rank-0.log"
    path.write_text("it runs\n")

    def interrupt(frame: FrameType, event: str, function: object) -> None:
        # Python handles a signal when a function in C returns, and drops what it has returned.
        if event == "c_return" and function is open:
            raise KeyboardInterrupt

    live = LiveOutput([path], lambda rank, line: None)
    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            live.poll(0.0)
    finally:
        sys.setprofile(None)
