"""What the runner knows of an item that a sub-runner runs, until it has reported the item in its turn."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from dist_testing.jobs.messages import AboutItem


@dataclass(slots=True)
class Record:
    """What has come about an item.

    Attributes:
        waiting: Messages that the runner has not passed on yet.
        has_begun: Whether the runner has passed on that it begins.
        has_ended: Whether the runner has passed on that it is reported.
        is_done: Whether the runner has passed on its last message.
    """

    waiting: deque[AboutItem] = field(default_factory=deque)
    has_begun: bool = False
    has_ended: bool = False
    is_done: bool = False
