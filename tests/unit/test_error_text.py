"""Texts of exceptions, as messages and reports show them."""

from __future__ import annotations

import pytest

from dist_testing.core.ground.error_text import MAX_TEXT_CHARS, shorten


def test_a_short_text_is_left_alone() -> None:
    """Up to the limit itself."""
    assert shorten("", 10) == ""
    assert shorten("0123456789", 10) == "0123456789"
    assert shorten("x" * MAX_TEXT_CHARS) == "x" * MAX_TEXT_CHARS


@pytest.mark.parametrize(("limit", "left_out"), [(10, 90), (11, 90), (50, 50)])
def test_a_long_text_keeps_its_ends_and_says_what_went(limit: int, left_out: int) -> None:
    """The head says where, the tail says what."""
    text = "".join(chr(0x100 + position) for position in range(100))
    short = shorten(text, limit)
    half = limit // 2
    assert short.startswith(text[:half] + "\n")
    assert short.endswith("\n" + text[-half:])
    assert f"{left_out} characters left out" in short
