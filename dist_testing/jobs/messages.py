"""What a sub-runner sends to the runner. Items go by their place among the collected ones."""

from __future__ import annotations

from dataclasses import dataclass

from dist_testing.core.ground.codec import Family

# A report of a failure holds the ends of all logs.
_MAX_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Began:
    """The item begins, at `at_s` on the monotonic clock."""

    item: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Reported:
    """A report of pytest about a part of the item.

    Attributes:
        item: Which item.
        at_s: When, on the monotonic clock.
        report: JSON of what pytest makes of a report for another process.
    """

    item: int
    at_s: float
    report: str


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning for pytest's summary.

    Attributes:
        item: Which item.
        category: Name of the warning's class, with its module.
        text: Its message.
        filename: File that it points to.
        line_number: Line in that file.
        when: pytest's word for the part of the run.
        place: JSON of the place in the code that pytest knows; "null" for none.
    """

    item: int
    category: str
    text: str
    filename: str
    line_number: int
    when: str
    place: str


@dataclass(frozen=True, slots=True)
class Happened:
    """An event of the run, as JSON."""

    item: int
    event: str


@dataclass(frozen=True, slots=True)
class Printed:
    """A rank of the item's world has printed a line, and the user watches live."""

    item: int
    rank: int
    line: str


@dataclass(frozen=True, slots=True)
class Ended:
    """pytest has reported all of the item, at `at_s` on the monotonic clock."""

    item: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing more follows about the item.

    Attributes:
        item: Which item.
        stop: Why the session has to end after the item; "" if it goes on.
    """

    item: int
    stop: str


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception that ends the session came out of the item.

    Attributes:
        item: Which item.
        kind: "exit" for `pytest.exit`, "interrupt" for a KeyboardInterrupt of the test, "error" for a broken hook.
        text: The message, or the traceback of an error.
        code: The exit code that `pytest.exit` asks for; None for none.
    """

    item: int
    kind: str
    text: str
    code: int | None


@dataclass(frozen=True, slots=True)
class Said:
    """A line for the log, such as why the item waits for GPUs."""

    item: int
    line: str


@dataclass(frozen=True, slots=True)
class Unable:
    """The sub-runner cannot start ranks. `text` is for the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The sub-runner has nothing more to do, and ends."""


AboutItem = Began | Reported | Warned | Happened | Said | Ended | Done | Raised
Message = AboutItem | Printed | Unable | Finished

MESSAGES: Family[Message] = Family(
    "message of a sub-runner",
    1,
    (Began, Reported, Warned, Happened, Printed, Ended, Done, Raised, Said, Unable, Finished),
    max_bytes=_MAX_BYTES,
)
