"""The check of the page that `//tools/ci -- page` makes of a remote invocation."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.remote.cluster import Tested, expect


def check_page(tested: Tested, ci: Path) -> None:
    """The page of the failed //tests/remote:failing_gloo knows its cases, its culprit, its worker and its waits.

    Raises:
        ComplaintError: If it is not so.
    """
    page, results = tested.events.with_suffix(".html"), tested.events.with_suffix(".results.json")
    command = [str(ci), "page", str(tested.events), f"--out={page}", f"--json={results}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    expect("the report of a remote invocation", 0, done.returncode, done.stderr)
    expect("what it could not read", "", done.stderr)
    (run,) = json.loads(results.read_text(encoding="utf-8"))["runs"]
    (case,) = run["cases"]
    expect("its target and status", ("//tests/remote:failing_gloo", "FAILED"), (run["target"], run["status"]))
    expect(
        "its case", ("tests.remote.failing.test_fails", "failed", 2), (case["name"], case["status"], case["world_size"])
    )
    expect("its culprit is a rank", True, case["culprit"] in (0, 1), str(case))
    expect("where it ran", ("remote", "cpu"), (run["strategy"], run["host"].rpartition("-")[0]))
    text = page.read_text(encoding="utf-8")
    for part in (f"on {run['host']}", "This case alone: "):
        expect(f"the page has {part!r}", True, part in text)
