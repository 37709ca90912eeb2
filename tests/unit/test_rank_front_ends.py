"""Rank front ends by name."""

from __future__ import annotations

import pytest

from dist_testing.core.ground.errors import UsageError
from dist_testing.core.session import front_ends
from dist_testing.core.session.front_ends import make_front_end, register_front_end


class _FrontEnd:
    def __init__(self, config: object, items: object) -> None:
        self.made_of = config, items


@pytest.fixture(autouse=True)
def _only_these(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_ends, "_registered", {})


def test_a_case_gets_the_front_end_that_it_names() -> None:
    """If this fails, a stranger's kind of test runs by another front end, or by none."""
    register_front_end("own", f"{__name__}:_FrontEnd")
    # The module can be imported twice, as in a fresh interpreter.
    register_front_end("own", f"{__name__}:_FrontEnd")
    made = make_front_end("own", "config", {})
    assert isinstance(made, _FrontEnd)
    assert made.made_of == ("config", {})


def test_a_name_has_one_front_end() -> None:
    """If this fails, which front end runs a case depends on the order of imports."""
    register_front_end("own", "one:Maker")
    with pytest.raises(UsageError, match="registered twice: by one:Maker and by other:Maker"):
        register_front_end("own", "other:Maker")


def test_an_unknown_name_is_refused() -> None:
    """If this fails, a rank that has not imported the front end's module fails with a traceback."""
    register_front_end("own", "one:Maker")
    with pytest.raises(UsageError, match="has the front end 'other', and this rank knows own"):
        make_front_end("other", None, {})
