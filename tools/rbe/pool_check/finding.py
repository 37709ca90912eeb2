"""What is known about a pool, and how it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """What is known about one property of the pool.

    Attributes:
        name: The property.
        verdict: "ok", "FAILED" for what the library relies on, or "note" for what merely may matter.
        text: What was seen.
    """

    name: str
    verdict: str
    text: str


def table(findings: Sequence[Finding]) -> str:
    """Return the findings as a Markdown table."""
    rows = ["| property | verdict | seen |", "|---|---|---|"]
    rows += [f"| {one.name} | {one.verdict} | {one.text.replace('|', '/')} |" for one in findings]
    return "\n".join(rows) + "\n"
