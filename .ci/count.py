"""Prints how many test targets passed, failed and were skipped, from Bazel's build events; CI's closing line."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools" / "report"))

from event_lines import read_events

# Of a target's summary; everything else that a test can end with is a failure.
_PASSED = ("PASSED", "FLAKY")


def main() -> int:
    """Count the summaries, and the targets that were incompatible.

    Returns:
        1 if there is nothing to count, or not all of it.
    """
    counts: Counter[str] = Counter()
    events = []
    try:
        events = read_events(Path(sys.argv[1]))
    except (OSError, ValueError) as error:
        print(f"ci: there are no build events: {error}")
    for event in events:
        if "testSummary" in event:
            counts["passed" if event["testSummary"]["overallStatus"] in _PASSED else "failed"] += 1
        elif event.get("aborted", {}).get("reason") == "SKIPPED" and "targetCompleted" in event["id"]:
            counts["skipped"] += 1
    is_complete = any(event.get("lastMessage") is True for event in events)
    if not is_complete:
        print("ci: FAILED: the build events break off")
    print(f"bazel: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
