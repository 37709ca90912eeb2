"""The first line of a log."""

from __future__ import annotations

import io
import sys

import pytest

from dist_testing.core.bazel.banner import Banner


def test_the_line_begins_at_once_and_other_output_waits() -> None:
    """If this fails, the log of a run that hangs at once is empty, or the first line lacks the result."""
    stream = io.StringIO()
    head = Banner(stream, "what runs")
    head.write("header\n")
    assert stream.getvalue() == "what runs"
    head.end_line(": everything was skipped")
    head.write("more\n")
    head.end_line(": too late")
    assert stream.getvalue() == "what runs: everything was skipped\nheader\nmore\n"


def test_the_banner_behaves_like_the_stream_it_wraps(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this fails, pytest, which asks for colours, descriptors and encodings, breaks."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    head = Banner(stream, "")
    assert head.encoding == "utf-8"
    assert not head.isatty()
    print("waits", file=head, flush=True)
    head.end_line()
    stream.seek(0)
    assert stream.read() == "\nwaits\n"
    # Its faulthandler wants the descriptor of standard error.
    monkeypatch.setattr(sys, "stderr", stream)
    with Banner(sys.stdout, "").in_place():
        assert sys.stderr.encoding == "utf-8"
        sys.stderr.flush()
        assert capsys.readouterr().out == ""


def test_errors_come_below_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    """If this fails, an error about a wrong option continues the first line, or the output before it is lost."""
    head = Banner(sys.stdout, "what runs")
    with head.in_place():
        print("waits")
        assert capsys.readouterr().out == "what runs"
        print("wrong", file=sys.stderr)
        assert capsys.readouterr() == ("\nwaits\n", "wrong\n")
    print("after")
    assert capsys.readouterr() == ("after\n", "")

    def run() -> None:
        with Banner(sys.stdout, "what runs").in_place():
            print("waits")
            raise OSError("planted")

    with pytest.raises(OSError, match="planted"):
        run()
    assert capsys.readouterr().out == "what runs\nwaits\n"
