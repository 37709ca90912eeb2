"""The table of docs/stability.md."""

from __future__ import annotations

import json
from pathlib import Path

import supported

ROOT = Path(__file__).parents[2]


def test_the_promised_versions_are_those_of_the_table() -> None:
    """If this fails, the page promises other versions than the library checks. The program writes them."""
    versions = json.loads((ROOT / "dist_testing" / "versions.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8")
    assert page == supported.with_table(page, versions)
    versions["torch"]["newest"] = "9.9"
    assert "| torch | 2.10 to 9.9;" in supported.with_table(page, versions)
