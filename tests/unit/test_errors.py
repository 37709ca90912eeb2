"""The exceptions of the library."""

from __future__ import annotations

import pytest

from dist_testing.core.ground import errors
from dist_testing.core.ground.case import CaseFailedError
from dist_testing.core.ground.errors import CollectiveError, DistTestingError, InterruptedRunError

# Other code handles these: unittest and pytest a failure or an interruption, test code the errors of a group.
_FOR_OTHERS = (CaseFailedError, CollectiveError, InterruptedRunError)


_OWN = [value for value in vars(errors).values() if isinstance(value, type) and not issubclass(value, _FOR_OTHERS)]


@pytest.mark.parametrize("error", _OWN)
def test_every_error_has_the_common_base(error: type) -> None:
    """If this fails, a user sees a traceback: the front ends print only the base class without one."""
    assert issubclass(error, UserWarning if error.__name__.endswith("Warning") else DistTestingError)


def test_an_interrupted_run_cannot_be_caught_as_a_failure() -> None:
    """If this fails, `except Exception` in test code swallows SIGTERM, and the run continues."""
    assert issubclass(InterruptedRunError, KeyboardInterrupt)
    assert not issubclass(InterruptedRunError, Exception)


def test_the_text_of_an_error_is_unchanged() -> None:
    """If this fails, the user does not see the text of the error, and nothing else is printed."""
    assert str(DistTestingError("one\ntwo")) == "one\ntwo"
