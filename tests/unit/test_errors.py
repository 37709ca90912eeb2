"""The exceptions of the library."""

from __future__ import annotations

import pytest

from dist_testing import errors
from dist_testing.case import CaseFailedError
from dist_testing.errors import CollectiveError, DistTestingError, InterruptedRunError

# These are what others act on: unittest and pytest on a failure or an interruption, test code on what a group raises.
_FOR_OTHERS = (CaseFailedError, CollectiveError, InterruptedRunError)


@pytest.mark.parametrize(
    "name", [name for name in errors.__all__ if not issubclass(getattr(errors, name), _FOR_OTHERS)]
)
def test_every_error_has_the_common_base(name: str) -> None:
    """The doors print that base without a traceback; another error would end in one."""
    assert issubclass(getattr(errors, name), DistTestingError)


def test_everything_in_the_module_is_public() -> None:
    """Users catch these by name."""
    defined = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert defined == set(errors.__all__)


def test_an_interrupted_run_cannot_be_caught_as_a_failure() -> None:
    """`except Exception` in test code would swallow it, and the run would go on after SIGTERM."""
    assert issubclass(InterruptedRunError, KeyboardInterrupt)
    assert not issubclass(InterruptedRunError, Exception)


def test_the_text_of_an_error_is_what_was_written_for_the_user() -> None:
    """It is all that is printed."""
    assert str(DistTestingError("one\ntwo")) == "one\ntwo"
