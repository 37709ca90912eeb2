"""Counts the files of the core whose code mentions an add-on, so that a new mention is a decision in a diff.

The core asks for add-ons through `core/ground/add_ons.py` and the hooks. What is left are words of torch, of the
spec and of backends, and calls that ask for an add-on by its name. Comments, docstrings and texts do not count.
"""

from __future__ import annotations

import io
import re
import tokenize
from dataclasses import dataclass
from pathlib import Path

_CORE = Path("dist_testing", "core")


@dataclass(frozen=True)
class _Mentions:
    """What names an add-on in the code of the core."""

    words: str  # pattern of an identifier, or of a string without blanks
    files: int  # in how many files of the core it may be
    why: str  # why it is there


_ALLOWED = {
    "attach": _Mentions("attach", 0, ""),
    "coverage": _Mentions("coverage", 2, "Bazel's protocol asks for it"),
    "faults": _Mentions(r"(?<!de)fault(?!handler)", 3, "the record of a case, and its result, have them"),
    "gpus": _Mentions("gpu", 3, "torch's own skips, `multi-gpu-4`; facts of a backend, which one public call declares"),
    "hang": _Mentions("ledger|(^|_)hang($|_)(?!up)", 4, "a cause of a verdict; the ledgers in the record of a case"),
    "huge_pages": _Mentions("huge_page", 0, ""),
    "jobs": _Mentions("jobs|side_by_side", 2, "the option that asks for the add-on"),
    "nccl": _Mentions("nccl", 2, "torch's own skip, by which people search; a fact of a backend"),
    # A `node` alone is pytest's, one of a syntax tree, or `World.node`: torchrun's GROUP_RANK.
    "nodes": _Mentions("(^|_)nodes($|_)|node_|_node$", 0, ""),
    "pool_state": _Mentions("pool_state", 0, ""),
    "programs": _Mentions("program_(exits|session)|^programs$", 0, ""),
    "selection": _Mentions("selection|dist_(min|max|needs)", 0, ""),
    "threads": _Mentions("^THREAD$|are_threads|thread_(items|front)", 0, ""),
    "watch": _Mentions("dist_watch|WATCH_OPTION|watch_target|^watched$", 3, "the option that asks for the add-on"),
}


def wrong_mentions(root: Path) -> list[str]:
    """Return a complaint for each add-on that the core mentions in another number of files than allowed."""
    found: dict[str, dict[str, set[str]]] = {name: {} for name in _ALLOWED}
    for path in sorted((root / _CORE).rglob("*.py")):
        words = _words(path)
        for name, allowed in _ALLOWED.items():
            if named := {word for word in words if re.search(allowed.words, word)}:
                found[name][str(path.relative_to(root / _CORE))] = named
    return [
        f"the core mentions the add-on {name} in {len(places)} file(s); tools/lint/mentions.py allows {allowed.files} "
        f"({allowed.why}).\n  " + "; ".join(f"{place}: {', '.join(sorted(named))}" for place, named in places.items())
        for name, allowed in _ALLOWED.items()
        if len(places := found[name]) != allowed.files
    ]


def _words(path: Path) -> set[str]:
    """Return the identifiers of a file, and its strings that could be one."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    words = {
        token.string.strip("rbf\"'") if token.type == tokenize.STRING else token.string
        for token in tokens
        if token.type in (tokenize.NAME, tokenize.STRING)
    }
    return {word for word in words if re.fullmatch(r"[\w.-]+", word)}
