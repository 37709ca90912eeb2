"""Prints how many test targets passed, failed and were skipped, from Bazel's build events: the last line of CI."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools" / "ci"))

from build_events import GOOD, EventsError, read_invocation


def main() -> int:
    """Count the test summaries and the incompatible targets.

    Returns:
        0 if the build events are complete, else 1.
    """
    counts: Counter[str] = Counter()
    is_complete = False
    try:
        invocation = read_invocation(Path(sys.argv[1]))
    except EventsError as error:
        print(f"ci: FAILED: {error}")
    else:
        counts.update("passed" if status in GOOD else "failed" for status in invocation.summaries.values())
        counts["skipped"] = len(invocation.incompatible)
        is_complete = invocation.is_complete
        if not is_complete:
            print("ci: FAILED: the build events are incomplete")
    print(f"bazel: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
