"""Prints how many test targets passed, failed and were skipped, from Bazel's build events; CI's closing line."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

# Of a target's summary; everything else that a test can end with is a failure.
_PASSED = ("PASSED", "FLAKY")


def main() -> None:
    """Count the summaries, and the targets that were incompatible."""
    counts: Counter[str] = Counter()
    for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if "testSummary" in event:
            counts["passed" if event["testSummary"]["overallStatus"] in _PASSED else "failed"] += 1
        elif event.get("aborted", {}).get("reason") == "SKIPPED" and "targetCompleted" in event["id"]:
            counts["skipped"] += 1
    print(f"bazel: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")


if __name__ == "__main__":
    main()
