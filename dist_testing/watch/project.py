"""What is watched, and what the watcher has learned of it from its runs."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from dist_testing.watch.run import Order, Told

_CONFTEST = "conftest.py"


@dataclass(slots=True)
class Project:
    """What the command line asks to watch, and what the runs have told."""

    directory: str  # where pytest was started
    root: str  # pytest's root folder, which node ids begin at
    arguments: tuple[str, ...]  # files, folders and node ids
    configuration: str  # pytest's configuration file; "" for none
    has_package_names: bool  # whether arguments may be names of packages
    tests: set[str] = field(default_factory=set)  # files with tests
    # Node ids of the tests that failed when they ran last; the first failure first.
    failed: dict[str, None] = field(default_factory=dict)

    def path_of(self, argument: str) -> str:
        """Return the file or folder that an argument names."""
        return os.path.normpath(os.path.join(self.directory, argument.partition("::")[0]))

    def present(self) -> tuple[str, ...]:
        """Return the arguments that pytest may find."""
        return tuple(one for one in self.arguments if self.has_package_names or os.path.exists(self.path_of(one)))

    def conftests_above(self, path: str) -> list[str]:
        """Return the names that conftest files for a file or folder have, up to the root, whether they exist or not."""
        return [str(folder / _CONFTEST) for folder in Path(path).parents if folder.is_relative_to(self.root)]

    def learn(self, told: Told, order: Order) -> None:
        """Take over the results of a run."""
        self.failed.update(dict.fromkeys(sorted(told.failed - self.failed.keys())))
        is_selected = bool(order.pattern or order.only_failed)
        for node_id in list(self.failed):
            file = os.path.normpath(os.path.join(self.root, node_id.partition("::")[0]))
            is_seen = node_id in told.outcomes
            # A test that is not there any more cannot fail.
            is_gone = not os.path.exists(file) or (file in told.tests and not is_seen and not is_selected)
            if is_gone or (is_seen and node_id not in told.failed):
                del self.failed[node_id]
        self.tests = {path for path in self.tests | told.tests if os.path.exists(path)}

    def unaffected(self, changed: Collection[str]) -> frozenset[str]:
        """Return the test files that a change does not concern: none, if other files than tests have changed."""
        affected: set[str] = set()
        for path in changed:
            name = os.path.basename(path)
            if name == _CONFTEST:
                affected |= {test for test in self.tests if Path(path).parent in Path(test).parents}
            elif path in self.tests or name.startswith("test_") or name.endswith("_test.py"):
                affected |= {path} | {test for test in self.tests if _names(test, name.removesuffix(".py"))}
            else:
                return frozenset()
        return frozenset(self.tests - affected)


def syntax_error(path: str) -> str:
    """Return `file:line: what is wrong` for a Python file that cannot be parsed; "" if it can, or does not exist."""
    try:
        ast.parse(Path(path).read_bytes(), path)
    except SyntaxError as error:
        text = (error.text or "").strip()
        return f"{path}:{error.lineno or 1}: {error.msg}{f': {text}' if text else ''}"
    except ValueError as error:
        return f"{path}:1: {error}"
    except OSError:
        return ""
    return ""


def _names(path: str, module: str) -> bool:
    """Return whether a source has the name of a module as a word, and so may import it."""
    try:
        source = Path(path).read_bytes()
    except OSError:
        return False
    return re.search(rb"\b%b\b" % re.escape(module.encode()), source) is not None
