"""Compares the size of the library with the budget in `sizes.json`, so that growth is a decision in a diff.

The budget has a number of lines for each folder of `dist_testing`, for the whole package, and for the closure of what
Bazel starts: the modules that `core.bazel.main` imports, directly or through others, imports inside functions
included. Who wants more lines raises the number in the same commit, and says why.
"""

from __future__ import annotations

import json
from pathlib import Path

import grimp

PACKAGE = "dist_testing"
BUDGET = Path("tools", "lint", "sizes.json")
_ENTRY = f"{PACKAGE}.core.bazel.main"
_CLOSURE = f"closure of {_ENTRY}"
# A limit that is further above the lines than this would let them grow without a decision.
_SLACK = 1.05


def wrong_sizes(root: Path, *, fix: bool = False) -> list[str]:
    """Return a complaint for each number of the budget that does not fit; with `fix`, write the budget anew."""
    found = sizes(root)
    if fix:
        (root / BUDGET).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        return []
    budget = json.loads((root / BUDGET).read_text(encoding="utf-8"))
    wrong = []
    for name in sorted(found.keys() | budget.keys()):
        lines, limit = found.get(name, 0), budget.get(name, 0)
        if not lines <= limit <= lines * _SLACK:
            wrong.append(
                f"{name} has {lines} lines; {BUDGET} allows {limit}.\n"
                f"  {'Remove lines, or raise' if lines > limit else 'Lower'} the number, and say why in the commit."
            )
    return wrong


def sizes(root: Path) -> dict[str, int]:
    """Return the number of lines of each folder, of the package and of the closure."""
    modules = _modules(root)
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules.items()}
    graph = grimp.build_graph(PACKAGE, exclude_type_checking_imports=True, cache_dir=None)
    found = {
        _CLOSURE: sum(lines[name] for name in (_ENTRY, *graph.find_upstream_modules(_ENTRY))),
        PACKAGE: sum(lines.values()),
    }
    for name, path in sorted(modules.items(), key=lambda item: item[1]):
        if len(parts := path.relative_to(root).parts) > 2:
            # The core, and each folder of it.
            for depth in (2, 3) if parts[1] == "core" and len(parts) > 3 else (2,):
                folder = "/".join(parts[:depth])
                found[folder] = found.get(folder, 0) + lines[name]
    return found


def _modules(root: Path) -> dict[str, Path]:
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found
