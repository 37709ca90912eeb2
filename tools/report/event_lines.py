"""The lines of a file of build events. Needs nothing but Python, for programs that Bazel does not start."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["read_events"]


def read_events(path: Path) -> list[Mapping[str, Any]]:
    """Return the events that Bazel has written to a file (`--build_event_json_file`).

    A last line that was cut off, because Bazel was killed or the disk is full, is left out; such events have no
    `lastMessage`.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it holds anything else.
    """
    # Not splitlines(): to that, characters end a line which JSON has inside of strings.
    lines = path.read_bytes().split(b"\n")
    events: list[Mapping[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            event = json.loads(line.decode("utf-8"))
        except ValueError as error:
            if events and number == len(lines):
                break
            raise ValueError(f"line {number}: {error}") from error
        if not isinstance(event, dict) or not isinstance(event.get("id"), dict):
            raise ValueError(f"line {number} is JSON, and not a build event")
        events.append(event)
    if not events:
        raise ValueError("it is empty")
    return events
