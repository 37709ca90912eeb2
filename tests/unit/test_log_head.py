"""The first line of a log."""

from __future__ import annotations

import io
import sys

import pytest

from dist_testing.bazel.banner import Banner


def test_the_line_begins_at_once_and_the_rest_waits() -> None:
    """A run that hangs at once must not have an empty log; one that skips everything says so in the first line."""
    stream = io.StringIO()
    head = Banner(stream, "what runs")
    head.write("header\n")
    assert stream.getvalue() == "what runs"
    head.end_line(": everything was skipped")
    head.write("more\n")
    assert stream.getvalue() == "what runs: everything was skipped\nheader\nmore\n"


def test_the_line_ends_once() -> None:
    """The first thing that runs ends it, and so does the end of the run."""
    stream = io.StringIO()
    head = Banner(stream, "what runs")
    head.end_line()
    head.end_line(": too late")
    assert stream.getvalue() == "what runs\n"


def test_it_is_otherwise_the_stream_that_it_stands_for() -> None:
    """pytest asks for colours, descriptors and encodings."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    head = Banner(stream, "")
    assert head.encoding == "utf-8"
    assert not head.isatty()
    print("waits", file=head, flush=True)
    head.end_line()
    stream.seek(0)
    assert stream.read() == "\nwaits\n"


def test_errors_come_below_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    """pytest tells a wrong option before any test has run; within the line it would be overlooked."""
    head = Banner(sys.stdout, "what runs")
    with head.in_place():
        print("waits")
        assert capsys.readouterr().out == "what runs"
        print("wrong", file=sys.stderr)
        assert capsys.readouterr() == ("\nwaits\n", "wrong\n")
    print("after")
    assert capsys.readouterr() == ("after\n", "")


def test_nothing_that_waits_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    """An error that ends the run before its first case is in the log with all that led to it."""
    head = Banner(sys.stdout, "what runs")

    def run() -> None:
        with head.in_place():
            print("waits")
            raise OSError("planted")

    with pytest.raises(OSError, match="planted"):
        run()
    assert capsys.readouterr().out == "what runs\nwaits\n"


def test_standard_error_is_otherwise_as_ever(capsys: pytest.CaptureFixture[str]) -> None:
    """pytest's faulthandler asks for its descriptor, before anything has run."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        with Banner(sys.stdout, "").in_place():
            assert sys.stderr.encoding == "utf-8"
            sys.stderr.flush()
            assert capsys.readouterr().out == ""
