"""Frames between a rank and the runner, including frames from a rank that sends garbage."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dist_testing.error_text import MAX_TEXT_CHARS, shorten
from dist_testing.errors import FrameError
from dist_testing.process.frames import MAX_FRAME_BYTES, Frame, FrameReader, FrameWriter

SETTINGS = settings(
    derandomize=True, database=None, deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
OUTCOME: dict[str, Any] = {
    "kind": "raised",
    "phase": "call",
    "reason": "",
    "summary": "ValueError: boom",
    "text": "Traceback",
    "exit_code": 0,
    "collateral": "",
    "operation": "",
    "types": "",
}
# Every code point, including surrogates: a test may raise any text that it reads.
TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=10)
FRAMES = st.one_of(
    st.sampled_from([Frame("ready"), Frame("done")]),
    st.builds(
        lambda texts, code: Frame(
            "outcome",
            {
                **dict(
                    zip(
                        ("kind", "phase", "reason", "summary", "text", "collateral", "operation", "types"),
                        texts,
                        strict=True,
                    )
                ),
                "exit_code": code,
            },
        ),
        st.lists(TEXT, min_size=8, max_size=8),
        st.integers(),
    ),
)


class Recorder:
    """A channel that keeps what is sent."""

    def __init__(self) -> None:
        self.data = b""

    def sendall(self, data: bytes) -> None:
        """Keep the data, as a socket would send it."""
        self.data += data


def sent(frames: Sequence[Frame]) -> bytes:
    """Return the bytes that the writer sends for these frames."""
    channel = Recorder()
    writer = FrameWriter(cast(socket.socket, channel))
    for frame in frames:
        writer.send(frame.kind, **frame.fields)
    return channel.data


def framed(payload: bytes) -> bytes:
    """Return a payload with its length in front."""
    return struct.pack(">I", len(payload)) + payload


def message(content: object) -> bytes:
    """Return a frame with any JSON as its content."""
    return framed(json.dumps(content).encode())


@SETTINGS
@given(st.lists(FRAMES, max_size=4), st.lists(st.integers(1, 200), max_size=20))
def test_frames_survive_any_cuts_of_the_stream(frames: list[Frame], cuts: list[int]) -> None:
    """If this fails, reports break whenever the kernel delivers them in other pieces than they were sent."""
    data = sent(frames)
    reader = FrameReader()
    received: list[Frame] = []
    for size in [*cuts, len(data)]:
        received += reader.feed(data[:size])
        data = data[size:]
    assert received == frames
    assert not reader.mid_frame


def test_frames_survive_one_byte_at_a_time() -> None:
    """If this fails, a frame that arrives in the smallest pieces is lost."""
    frames = [Frame("ready"), Frame("outcome", OUTCOME), Frame("done")]
    reader = FrameReader()
    received = [frame for byte in sent(frames) for frame in reader.feed(bytes([byte]))]
    assert received == frames


def test_an_incomplete_frame_is_detected_at_every_cut() -> None:
    """If this fails, a rank that dies during its report counts as one that reported nothing, or everything."""
    data = sent([Frame("outcome", OUTCOME)])
    for kept in range(1, len(data)):
        reader = FrameReader()
        assert list(reader.feed(data[:kept])) == []
        assert reader.mid_frame
    assert not FrameReader().mid_frame


def test_an_incomplete_frame_after_complete_ones_is_detected() -> None:
    """If this fails, an incomplete frame hides the complete frames before it."""
    reader = FrameReader()
    assert list(reader.feed(sent([Frame("ready")]) + sent([Frame("done")])[:-1])) == [Frame("ready")]
    assert reader.mid_frame


@pytest.mark.parametrize("length", [MAX_FRAME_BYTES + 1, 0xFFFFFFFF, int.from_bytes(b"Hell", "big")])
def test_an_absurd_length_is_refused_before_its_bytes_arrive(length: int) -> None:
    """If this fails, text that a test prints on the channel makes the runner wait for gigabytes."""
    with pytest.raises(FrameError, match=f"{length} bytes; the limit is {MAX_FRAME_BYTES}"):
        list(FrameReader().feed(struct.pack(">I", length)))


def test_a_frame_of_the_largest_size_is_read() -> None:
    """If this fails, a frame of exactly the largest allowed size is refused."""
    reader = FrameReader()
    padding = MAX_FRAME_BYTES - len(json.dumps({"frame": "outcome", **OUTCOME, "text": ""}))
    frame = next(reader.feed(message({"frame": "outcome", **OUTCOME, "text": "x" * padding})))
    assert len(frame.fields["text"]) == padding


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"\xff\xfe\x00", b"\x80\x04K\x01.", b"{} {}", b"[" * 200_000, b"9" * 5000 + b"."],
    ids=["empty", "cut", "binary", "pickle", "two", "deep", "digits"],
)
def test_a_payload_that_is_not_json_is_refused(payload: bytes) -> None:
    """If this fails, a payload that is not JSON reaches the reader's caller as another error."""
    with pytest.raises(FrameError, match="not JSON") as caught:
        list(FrameReader().feed(framed(payload)))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "content",
    [
        None,
        3,
        "ready",
        [],
        ["ready"],
        {},
        {"frame": None},
        {"frame": 3},
        {"frame": ["ready"]},
        {"frame": {"ready": 1}},
        {"frame": "Ready"},
        {"frame": "started"},
    ],
    ids=repr,
)
def test_unknown_frames_are_refused(content: object) -> None:
    """If this fails, a frame of an unknown kind is ignored although it may report a failure."""
    with pytest.raises(FrameError, match="unknown frame"):
        list(FrameReader().feed(message(content)))


@pytest.mark.parametrize("name", list(OUTCOME))
@pytest.mark.parametrize("value", [None, True, 1.5, [], {}], ids=repr)
def test_a_field_of_the_wrong_type_is_refused(name: str, value: object) -> None:
    """If this fails, a wrong type causes an error in the code behind the reader."""
    with pytest.raises(FrameError, match=r"frame 'outcome' with {"):
        list(FrameReader().feed(message({"frame": "outcome", **OUTCOME, name: value})))


@pytest.mark.parametrize("name", list(OUTCOME))
def test_a_missing_field_is_refused(name: str) -> None:
    """If this fails, the runner accepts half an outcome."""
    content = {"frame": "outcome", **OUTCOME}
    del content[name]
    with pytest.raises(FrameError, match=r"frame 'outcome' with {"):
        list(FrameReader().feed(message(content)))


@pytest.mark.parametrize("kind", ["ready", "outcome", "done"])
def test_an_extra_field_is_refused(kind: str) -> None:
    """If this fails, a field that the runner does not know is dropped silently."""
    fields = {"outcome": OUTCOME}.get(kind, {})
    assert len(list(FrameReader().feed(message({"frame": kind, **fields})))) == 1
    with pytest.raises(FrameError, match="extra"):
        list(FrameReader().feed(message({"frame": kind, **fields, "extra": ""})))


@SETTINGS
@given(st.binary(max_size=200))
def test_garbage_gives_only_frames_or_a_frame_error(data: bytes) -> None:
    """If this fails, garbage from a rank ends the runner with a traceback."""
    reader = FrameReader()
    try:
        for frame in reader.feed(data):
            assert isinstance(frame, Frame)
    except FrameError:
        pass


@SETTINGS
@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(["ready", "outcome", "frame"])),
        lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.sampled_from(["frame", "phase", "kind"]), inner)),
        max_leaves=8,
    )
)
def test_any_json_gives_a_frame_or_a_frame_error(content: object) -> None:
    """If this fails, valid JSON with a wrong content ends the runner with a traceback."""
    try:
        for frame in FrameReader().feed(message(content)):
            assert frame.kind in ("ready", "outcome", "done")
    except FrameError:
        pass


def test_a_runner_that_has_ended_causes_no_error_on_the_rank() -> None:
    """If this fails, the log of a correct test shows a traceback, only because its runner has ended."""
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        FrameWriter(ours).send("ready")


def test_a_closed_channel_is_an_error_for_the_rank() -> None:
    """If this fails, a test that closed its channel continues as if it had reported."""
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs, pytest.raises(OSError, match="Bad file descriptor"):
        FrameWriter(ours).send("ready")


def test_a_short_text_is_unchanged() -> None:
    """If this fails, a text that fits is changed."""
    assert shorten("", 10) == ""
    assert shorten("0123456789", 10) == "0123456789"
    assert shorten("x" * MAX_TEXT_CHARS) == "x" * MAX_TEXT_CHARS


@pytest.mark.parametrize(("limit", "left_out"), [(10, 90), (11, 90), (50, 50)])
def test_a_long_text_keeps_both_ends_and_counts_the_rest(limit: int, left_out: int) -> None:
    """If this fails, a long text loses its head, which says where, or its tail, which says what."""
    text = "".join(chr(0x100 + position) for position in range(100))
    short = shorten(text, limit)
    half = limit // 2
    assert short.startswith(text[:half] + "\n")
    assert short.endswith("\n" + text[-half:])
    assert f"{left_out} characters left out" in short


def test_the_longest_texts_fit_a_frame_in_any_script() -> None:
    """If this fails, a report is too long to send, and a failure looks like a crash.

    A character beyond 16 bits takes twelve bytes in JSON.
    """
    text = shorten("\N{PILE OF POO}" * (MAX_TEXT_CHARS + 1))
    frame = Frame("outcome", {**OUTCOME, "reason": text, "text": text})
    assert next(FrameReader().feed(sent([frame]))) == frame
