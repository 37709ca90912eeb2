"""The limits of a selection: the options `--dist-min-gpus`, `--dist-max-gpus`, `--dist-min-world-size`, and so on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.spec import Spec, number_in

# Above what any test needs: the bound turns a typing error into a text.
_MAX = 99_999
_ALL = range(_MAX + 1)


@dataclass(frozen=True, slots=True)
class Limits:
    """Which needs a test may have to be selected.

    Attributes:
        gpus: Allowed numbers of GPUs.
        ranks: Allowed world sizes.
    """

    gpus: range = _ALL
    ranks: range = _ALL

    def __str__(self) -> str:
        named = (("GPUs", self.gpus), ("ranks", self.ranks))
        return ", ".join(f"{allowed[0]} to {allowed[-1]} {what}" for what, allowed in named if allowed != _ALL)


def from_options(spec: Spec, given: Mapping[str, str]) -> Limits:
    """Return the limits that the command line sets.

    Raises:
        UsageError: If a value is no number that the option takes, or a smallest number is above the largest.
    """
    del spec
    # A test may need no GPU, and no world has less than one rank.
    return Limits(_allowed(given, "gpus", least=0), _allowed(given, "world-size", least=1))


def _allowed(given: Mapping[str, str], what: str, *, least: int) -> range:
    at_least, at_most = f"--dist-min-{what}", f"--dist-max-{what}"
    # A smallest number of 0 would select every test.
    low = _number(given, at_least, 1) if at_least in given else 0
    high = _number(given, at_most, least) if at_most in given else _MAX
    if low > high:
        raise UsageError(
            f"{at_least}={low} with {at_most}={high}.\n"
            "No test can meet both limits, so none would run.\n"
            "Exchange the two numbers, or leave one option out."
        )
    return range(low, high + 1)


def _number(given: Mapping[str, str], option: str, least: int) -> int:
    text = given[option]
    if (number := number_in(text)) is None or not least <= number <= _MAX:
        raise UsageError(
            f"{option}={text}: expected a number from {least} to {_MAX}.\n"
            f"It selects tests by their need: tests with {'fewer' if 'min' in option else 'more'} are deselected.\n"
            f"Write {option}=4, for example, or leave it out."
        )
    return number
