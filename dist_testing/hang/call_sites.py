"""Finds the expression of the call that a frame is in, from the frame's position and its source file."""

from __future__ import annotations

import ast
import itertools
import linecache
from types import FrameType


def call_in(frame: FrameType) -> ast.Call | None:
    """Return the expression of the call that the frame is in; None if there is none, or no source."""
    code = frame.f_code
    position = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    line, end_line, column, end_column = position
    if line is None or end_line is None or column is None or end_column is None:
        return None
    lines = [text.encode() for text in linecache.getlines(code.co_filename, frame.f_globals)[line - 1 : end_line]]
    if len(lines) != end_line - line + 1:
        return None
    # The end first: both may be on one line.
    lines[-1] = lines[-1][:end_column]
    lines[0] = lines[0][column:]
    return _parsed_call(b"".join(lines))


def _parsed_call(source: bytes) -> ast.Call | None:
    try:
        node = ast.parse(b"(" + source + b"\n)", mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return node if isinstance(node, ast.Call) else None
