"""What the watcher has learned from its runs: tests, failures and imports."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dist_testing.watch.graph import Graph
from dist_testing.watch.messages import Collected, LoadConftests, Module, Preload, Reported, RunTests


@dataclass(frozen=True, slots=True)
class Project:
    """What the command line asks to watch.

    Attributes:
        directory: Where pytest was started.
        root: pytest's root folder, which node ids begin at.
        arguments: Files, folders and node ids.
        configuration: pytest's configuration file; "" for none.
        has_package_names: Whether arguments may be names of packages.
    """

    directory: str
    root: str
    arguments: tuple[str, ...]
    configuration: str
    has_package_names: bool

    def path_of(self, argument: str) -> str:
        """Return the file or folder that an argument names."""
        return os.path.normpath(os.path.join(self.directory, argument.partition("::")[0]))

    def file_of(self, node_id: str) -> str:
        """Return the file of a test."""
        return os.path.normpath(os.path.join(self.root, node_id.partition("::")[0]))


class Knowledge:
    """What the watcher knows about a project.

    Attributes:
        graph: The imports between the files.
        tests: Files with tests.
        failed: Node ids of the tests that failed when they ran last; the first failure first.
        hot: Files that have changed since the start. Each run imports what depends on them.
    """

    def __init__(self, project: Project, own: Collection[str]) -> None:
        """Know nothing yet. `own` are files that the watcher itself has imported."""
        self.graph = Graph(own)
        self.tests: set[str] = set()
        self.failed: dict[str, None] = {}
        self.hot: set[str] = set()
        self._project = project
        self._own = frozenset(own)
        self._modules: tuple[Module, ...] = ()
        self._search_path: tuple[str, ...] = ()
        # In the order in which runs have needed them.
        self._third_party: list[Preload] = []

    def orders(self) -> list[Preload | LoadConftests]:
        """Return the orders for warm processes that import all that has not changed."""
        third_party = {
            module.name: module.file for module in self._modules if module.is_third_party and module.is_movable
        }
        known = {name for order in self._third_party for name in order.modules}
        if more := {name: file for name, file in third_party.items() if name not in known}:
            # After the others, which stay.
            self._third_party.append(Preload(tuple(more), tuple(more.values()), self._search_path, may_hold=True))
        library = [
            module
            for module in self._modules
            if not module.is_third_party
            and module.is_movable
            and module.file not in self._own
            and self.graph.reached_from(module.file).isdisjoint(self.hot)
        ]
        orders: list[Preload | LoadConftests] = [*self._third_party]
        if library:
            names, files = tuple(one.name for one in library), tuple(one.file for one in library)
            orders.append(Preload(names, files, self._search_path, may_hold=False))
        return [*orders, LoadConftests()]

    def learn(self, events: Sequence[object], order: RunTests) -> set[str]:
        """Take over the results of a whole run; return the files to watch."""
        own = self.learn_imports(events)
        collected = {file for event in events if isinstance(event, Collected) for file in event.test_files}
        failed = {event.node_id for event in events if isinstance(event, Reported) and event.outcome == "failed"}
        seen = {event.node_id for event in events if isinstance(event, Reported)}
        self.failed.update(dict.fromkeys(sorted(failed - self.failed.keys())))
        is_selected = bool(order.pattern or order.only_failed)
        for node_id in list(self.failed):
            file = self._project.file_of(node_id)
            # A test that is not there any more cannot fail.
            is_gone = not os.path.exists(file) or (file in collected and node_id not in seen and not is_selected)
            if is_gone or (node_id in seen and node_id not in failed):
                del self.failed[node_id]
        self.tests = {path for path in self.tests if os.path.exists(path)}
        return own

    def learn_imports(self, events: Sequence[object]) -> set[str]:
        """Take over what a run has imported; return the files to watch."""
        collected: set[str] = set()
        for event in events:
            if isinstance(event, Collected):
                self._modules, self._search_path = self._merged(event.modules), event.search_path
                collected.update(event.test_files)
        self.tests |= collected
        self.graph.learn({module.name: module.file for module in self._modules}, self._search_path)
        own = {module.file for module in self._modules if not module.is_third_party} | collected
        for path in list(own):
            own |= self.graph.reached_from(path)
        return own

    def _merged(self, modules: Sequence[Module]) -> tuple[Module, ...]:
        """Return the modules of this run, and those that only earlier runs have imported."""
        names = {module.name for module in modules}
        earlier = [one for one in self._modules if one.name not in names and os.path.exists(one.file)]
        return (*earlier, *modules)
