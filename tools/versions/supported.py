#!/usr/bin/env python3
"""Writes the versions of dist_testing/versions.json into docs/stability.md: `python3 tools/versions/supported.py`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).absolute().parents[2]
PAGE = ROOT / "docs" / "stability.md"
_BLOCK = re.compile(r"(?<=<!-- versions\.json -->\n).*?(?=<!-- end of versions\.json -->)", re.DOTALL)
_HEAD = "| | supported | CI runs | no run in CI yet |\n|---|---|---|---|\n"


def supported(table: Mapping[str, Any]) -> str:
    """Return the table of versions and platforms, in Markdown."""
    torch, bazel, oldest = table["torch"], table["bazel"], table["oldest_packages"]
    promised = {
        "Linux on": ("cpu", "each CPU that torch has wheels for"),
        "Python": ("python", f"{table['python']['oldest']} and newer"),
        "torch": ("torch", f"{torch['oldest']} to {torch['newest']}; newer ones with a warning"),
        **{name: (name, f"{lowest} and newer") for name, lowest in oldest.items()},
        "Bazel": ("bazel", f"{bazel['oldest']} to {bazel['newest']}"),
        "rules_python": ("rules_python", "1.0 and newer; Debian's 0.22.1"),
    }
    return _HEAD + "".join(
        f"| {name} | {text} | {' | '.join(_tried(table, key))} |\n" for name, (key, text) in promised.items()
    )


def _tried(table: Mapping[str, Any], key: str) -> tuple[str, str]:
    """Return the versions that CI runs, and those that no run has proven."""
    if key in table["oldest_packages"]:
        return f"{table['oldest_packages'][key]} and the locked one", ""
    proven = {row[key] for row in table["combinations"] if row["proven"]}
    others = {row[key] for row in table["combinations"]} - proven
    return ", ".join(sorted(proven)), ", ".join(sorted(others))


def with_table(page: str, table: Mapping[str, Any]) -> str:
    """Return a page with the table in the place of the one that it has."""
    return _BLOCK.sub(lambda _: supported(table), page)


if __name__ == "__main__":
    versions = json.loads((ROOT / "dist_testing" / "versions.json").read_text(encoding="utf-8"))
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), versions), encoding="utf-8")
