"""What a block prints, as text."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

__all__ = ["captured_output"]


@contextlib.contextmanager
def captured_output() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """Replace `sys.stdout` and `sys.stderr` for a block. C++ code, which writes to the descriptors, is not captured.

    Yields:
        What stands in for them.
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield out, err
