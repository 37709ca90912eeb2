"""The first line of a log."""

from __future__ import annotations

import io

from dist_testing.runner.log_head import LogHead


def test_the_line_begins_at_once_and_the_rest_waits() -> None:
    """A run that hangs at once must not have an empty log; one that skips everything says so in the first line."""
    stream = io.StringIO()
    head = LogHead(stream, "what runs")
    head.write("header\n")
    assert stream.getvalue() == "what runs"
    head.end_line(": everything was skipped")
    head.write("more\n")
    assert stream.getvalue() == "what runs: everything was skipped\nheader\nmore\n"


def test_the_line_ends_once() -> None:
    """The first thing that runs ends it, and so does the end of the run."""
    stream = io.StringIO()
    head = LogHead(stream, "what runs")
    head.end_line()
    head.end_line(": too late")
    assert stream.getvalue() == "what runs\n"


def test_it_is_otherwise_the_stream_that_it_stands_for() -> None:
    """pytest asks for colours, descriptors and encodings."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    head = LogHead(stream, "")
    assert head.encoding == "utf-8"
    assert not head.isatty()
    print("waits", file=head, flush=True)
    head.end_line()
    stream.seek(0)
    assert stream.read() == "\nwaits\n"
