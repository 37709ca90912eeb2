"""Which rank waits before which of its calls, and for how long: a pure function of a seed; and what it tells then."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from dist_testing.core.ground.codec import Family
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.spec import MAX_WORLD_SIZE, Spec, number_in

NAME = "perturb"
# $DIST_TESTING_PERTURB (internal): on a rank: the text of its plan.
VARIABLE = "DIST_TESTING_PERTURB"
_SEED_OPTION, _REPEAT_OPTION = "--dist-perturb", "--dist-repeat"
_RANDOM = "random"
_MAX_SEED = (1 << 31) - 1
_MAX_RUNS = 100_000
# A seed chooses one of these shares of calls for each rank: ranks that are all equally slow keep their order.
_SHARES = (0.0, 0.1, 0.5)
# Longer than a switch between processes, than a small message, and than a step of a test. Milliseconds.
_DELAYS_MS = (1, 10, 100)
_TEXT = re.compile(r"(\d{1,10})(?::((?:\d+\.\d+(?:,\d+\.\d+)*)?))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Plan:
    """Delays of a case."""

    seed: int  # decides everything
    runs: int = 1  # how often a case is run until it fails, each time with the next seed
    # Pairs of a rank and the number of its call, from 1, that alone are delayed; None for all.
    only: tuple[tuple[int, int], ...] | None = None

    def __str__(self) -> str:
        only = "" if self.only is None else ":" + ",".join(f"{rank}.{call}" for rank, call in self.only)
        return f"{self.seed}{only}"

    def delay_ms(self, rank: int, call: int) -> int:
        """Return how long a rank waits before one of its calls, in milliseconds; 0 for not."""
        if self.only is not None and (rank, call) not in self.only:
            return 0
        share = random.Random(f"{self.seed}.{rank}").choice(_SHARES)
        chance = random.Random(f"{self.seed}.{rank}.{call}")
        return chance.choice(_DELAYS_MS) if chance.random() < share else 0


@dataclass(frozen=True, slots=True)
class Delay:
    """A rank has waited before a call."""

    rank: Annotated[int, range(MAX_WORLD_SIZE)]
    call: Annotated[int, range(1, 1 << 31)]  # number of the call among those of the rank in the case, from 1
    delay_ms: Annotated[int, range(1, 1 << 16)]  # how long, in milliseconds
    operation: str  # name of the function, such as "all_reduce"
    place: str  # file and line of the test; "" if they are not known

    def __str__(self) -> str:
        place = f" ({self.place})" if self.place else ""
        return f"rank {self.rank} waited {self.delay_ms} ms before {self.operation}{place}"


DELAYS: Family[Delay] = Family("delay of a rank", 1, (Delay,))


def read_plan(subject: str, value: object) -> Plan:
    """Return the plan that a user gives as a seed, such as 7, or with its only delays, such as "7:1.3,0.2".

    `subject` begins the text of an error.
    """
    if isinstance(value, Plan):
        return value
    if value == _RANDOM:
        return Plan(random.SystemRandom().randint(0, _MAX_SEED))
    text = str(value) if type(value) is int else value
    if not isinstance(text, str) or not (found := _TEXT.fullmatch(text)) or int(found[1]) > _MAX_SEED:
        raise UsageError(
            f"{subject}: perturb = {value!r}; expected a seed from 0 to {_MAX_SEED}, or {_RANDOM!r}.\n"
            "The seed decides which ranks wait before which of their calls. A report adds to it the delays that alone "
            "make the case fail, as RANK.CALL.\n"
            f"Use 1, for example, or 1:0.3,2.1 from a report."
        )
    if found[2] is None:
        return Plan(int(found[1]))
    pairs = (pair.split(".") for pair in found[2].split(",") if pair)
    return Plan(int(found[1]), only=tuple((int(rank), int(call)) for rank, call in pairs))


def from_options(spec: Spec, given: Mapping[str, str]) -> Plan:
    """Return the plan that the command line asks for."""
    repeat = given.get(_REPEAT_OPTION, "1")
    if not 1 <= (runs := number_in(repeat) or 0) <= _MAX_RUNS or _SEED_OPTION not in given:
        raise UsageError(
            f"{_REPEAT_OPTION}={repeat}: expected a number from 1 to {_MAX_RUNS}, beside {_SEED_OPTION}.\n"
            "Each case runs that often, each time with the next seed, until it fails.\n"
            f"Write {_SEED_OPTION}=1 {_REPEAT_OPTION}=20, for example."
        )
    return replace(read_plan(_SEED_OPTION, given[_SEED_OPTION]), runs=runs)
