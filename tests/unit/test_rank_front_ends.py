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
    # Not by the order of imports, and not with a traceback.
    with pytest.raises(UsageError, match=f"registered twice: by {__name__}:_FrontEnd and by other:Maker"):
        register_front_end("own", "other:Maker")
    with pytest.raises(UsageError, match="has the front end 'other', and this rank knows own"):
        make_front_end("other", None, {})
