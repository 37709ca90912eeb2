"""How the runner's process ends under Bazel, when its results are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.children import Target
from tests.support.starter import Starter

_SOURCE = """
    import atexit
    import os
    import sys
    import pytest

    RUNNER = os.getpid()

    def say(text):
        if os.getpid() == RUNNER:
            sys.__stderr__.write(text + "\\n")

    class Last:
        def __del__(self, write=os.write):
            write(2, b"taken apart")

    LAST = Last()
    atexit.register(say, "handler called")

    @pytest.mark.distributed
    def test_on_ranks(world):
        assert RIGHT
"""
_HERE = """

    def test_in_runner(): ...
"""


@pytest.mark.parametrize("is_right", [True, False])
@pytest.mark.parametrize("here", ["", _HERE], ids=["ranks only", "a test in the runner"])
def test_exit_handlers_are_called_before_the_end(starter: Starter, tmp_path: Path, here: str, is_right: bool) -> None:
    """A runner that has run no test saves the time to take modules apart; the verdict is the exit code in any case."""
    target = Target(tmp_path, {"test_cases.py": _SOURCE.replace("RIGHT", str(is_right)) + here})
    ended = target.run(starter)
    assert ended.code == (0 if is_right else 1), ended.log
    assert ended.log.count("handler called") == 1, ended.log
    assert ("taken apart" in ended.log) is bool(here), ended.log
