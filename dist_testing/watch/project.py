"""What is watched, and what the watcher has learned of it from its runs."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from dist_testing.watch.messages import Imported, Reported, WatchEvent
from dist_testing.watch.run import Order

_CONFTEST = "conftest.py"


@dataclass(frozen=True, slots=True)
class Project:
    """What the command line asks to watch."""

    directory: str  # where pytest was started
    root: str  # pytest's root folder, which node ids begin at
    arguments: tuple[str, ...]  # files, folders and node ids
    configuration: str  # pytest's configuration file; "" for none
    has_package_names: bool  # whether arguments may be names of packages

    def path_of(self, argument: str) -> str:
        """Return the file or folder that an argument names."""
        return os.path.normpath(os.path.join(self.directory, argument.partition("::")[0]))

    def exists(self, argument: str) -> bool:
        """Return whether pytest may find what an argument names."""
        return self.has_package_names or os.path.exists(self.path_of(argument))

    def conftests_above(self, path: str) -> list[str]:
        """Return the names that conftest files for a file or folder have, up to the root, whether they exist or not."""
        folders = [folder for folder in Path(path).parents if folder.is_relative_to(self.root)]
        return [str(folder / _CONFTEST) for folder in folders]

    def file_of(self, node_id: str) -> str:
        """Return the file of a test."""
        return os.path.normpath(os.path.join(self.root, node_id.partition("::")[0]))


class Results:
    """What the runs have told."""

    def __init__(self, project: Project) -> None:
        self.tests: set[str] = set()  # files with tests
        # Node ids of the tests that failed when they ran last; the first failure first.
        self.failed: dict[str, None] = {}
        self._project = project

    def learn(self, events: Sequence[WatchEvent], order: Order) -> None:
        """Take over the results of a run."""
        collected = {file for event in events if isinstance(event, Imported) for file in event.test_files}
        seen = {event.node_id for event in events if isinstance(event, Reported)}
        failed = {event.node_id for event in events if isinstance(event, Reported) and event.outcome == "failed"}
        self.failed.update(dict.fromkeys(sorted(failed - self.failed.keys())))
        is_selected = bool(order.pattern or order.only_failed)
        for node_id in list(self.failed):
            file = self._project.file_of(node_id)
            # A test that is not there any more cannot fail.
            is_gone = not os.path.exists(file) or (file in collected and node_id not in seen and not is_selected)
            if is_gone or (node_id in seen and node_id not in failed):
                del self.failed[node_id]
        self.tests = {path for path in self.tests | collected if os.path.exists(path)}

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
