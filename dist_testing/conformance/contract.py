"""The rows of the contract: what torch.distributed promises, whatever the backend. Each cell names its row.

They stand in the tables of contract.md. `python -m dist_testing.conformance --contract` prints the file, and
docs/conformance_contract.md is a copy of it.
"""

from __future__ import annotations

import re
from pathlib import Path

CONTRACT = Path(__file__).with_name("contract.md").read_text(encoding="utf-8")
_FOUND = re.findall(r"^\| ([\d.]+) \| (.+?)(?: \(No cell of its own: (.+)\.\))? \|$", CONTRACT, re.MULTILINE)
# Number of a row to its text.
ROWS: dict[str, str] = {row: text for row, text, _ in _FOUND}
# Rows without a cell of their own: cells of other rows that show them, or why none can.
WITHOUT_CELL: dict[str, str] = {row: reason for row, _, reason in _FOUND if reason}
