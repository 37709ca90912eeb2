"""One fact about a pool, and the table that shows all facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """The result for one property of the pool.

    Attributes:
        name: The property.
        verdict: "ok"; "FAILED" if the library needs it; "note" if only some tests need it.
        text: What was observed.
    """

    name: str
    verdict: str
    text: str


def table(findings: Sequence[Finding]) -> str:
    """Return the findings as a Markdown table."""
    rows = ["| property | verdict | seen |", "|---|---|---|"]
    rows += [f"| {one.name} | {one.verdict} | {one.text.replace('|', '/')} |" for one in findings]
    return "\n".join(rows) + "\n"
