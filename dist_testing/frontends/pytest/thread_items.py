"""pytest items for ranks that are threads of one process.

pytest keeps the state of a running test in the item, in the fixture definitions that it uses, in the session's setup
state, and in the configuration. All of these exist once per process; here each thread gets its own.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from dist_testing.errors import CollectiveError
from dist_testing.frontends.pytest.internals import SetupState, runner_module

__all__ = ["REFUSED_FIXTURES", "ThreadItems"]

_Definitions = Sequence[pytest.FixtureDef[Any]]

_OUTPUT = "It takes the output of the whole process, and there is one process for all ranks."
# Fixture to why it cannot be had.
REFUSED_FIXTURES = {
    **dict.fromkeys(("capsys", "capsysbinary", "capteesys", "capfd", "capfdbinary"), _OUTPUT),
    "caplog": "It takes the log records of the whole process, and there is one process for all ranks.",
    "recwarn": "It takes the warnings of the whole process, and there is one process for all ranks.",
    "monkeypatch": "It changes the process that all ranks share, and each rank would undo what another one has done.",
}


class _Own(threading.local):
    """What one thread has of its own. A rank's thread lives for one case, so it all begins anew with each."""

    def __init__(self) -> None:
        self.setup_state = SetupState()
        self.definitions: dict[int, pytest.FixtureDef[Any]] = {}


class _SetupStateOfThread:
    """Whatever is done to it is done to the calling thread's."""

    def __init__(self, own: _Own) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own.setup_state, name)


def _repr_failure(item: Any, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:
    if isinstance(excinfo.value, CollectiveError):
        # pytest's own form shows the source around each frame, for which it parses all of torch's module: seconds, when
        # the ranks of a world do so together. The text of the error says which call it is about. Natively pytest leaves
        # out nothing of how it came to the test.
        excinfo.traceback = item._traceback_filter(excinfo)
        return item._repr_failure_py(excinfo, style="native")
    return type(item).repr_failure(item, excinfo)


class ThreadItems:
    """Makes items for threads. There is no way back: the process is for threads from then on."""

    def __init__(self, config: pytest.Config, session: pytest.Session) -> None:
        """Have pytest look for its state where the thread has its own.

        Args:
            config: Of the session.
            session: Whose items will be asked for.
        """
        self._own = _Own()
        internals: Any = session
        internals._setupstate = _SetupStateOfThread(self._own)
        # For fixtures that a test asks for while it runs.
        manager = internals._fixturemanager
        find = manager.getfixturedefs
        manager.getfixturedefs = lambda *args: self._own_definitions(find(*args))
        # All threads would write one environment variable, and the second to remove it would fail.
        runner_module._update_current_test_var = lambda item, when: None
        for name in ("capturemanager", "logging-plugin"):
            if config.pluginmanager.hasplugin(name):
                config.pluginmanager.unregister(name=name)

    def own(self, item: pytest.Item) -> pytest.Item:
        """The calling thread's own item; ask once per thread.

        Args:
            item: As it was collected.
        """
        mine: Any = copy.copy(item)
        mine.config = copy.copy(item.config)
        if hasattr(item.config, "_tmp_path_factory"):
            mine.config._tmp_path_factory = copy.copy(item.config._tmp_path_factory)
        mine.stash = mine._store = pytest.Stash()
        mine.stash._storage.update(item.stash._storage)
        mine.own_markers = list(item.own_markers)
        mine.user_properties = list(item.user_properties)
        mine._report_sections = []
        if isinstance(item.parent, pytest.Class):
            # Each rank has an instance of the class; it is made when it is needed.
            mine.__dict__.pop("_obj", None)
            mine.__dict__.pop("_instance", None)
        info = mine._fixtureinfo
        definitions = {name: self._own_definitions(found) for name, found in info.name2fixturedefs.items()}
        mine._fixtureinfo = dataclasses.replace(info, name2fixturedefs=definitions)
        mine._initrequest()
        mine.repr_failure = functools.partial(_repr_failure, mine)
        return mine  # type: ignore[no-any-return]

    def _own_definitions(self, found: _Definitions | None) -> _Definitions | None:
        return None if found is None else [self._own_definition(definition) for definition in found]

    def _own_definition(self, definition: pytest.FixtureDef[Any]) -> pytest.FixtureDef[Any]:
        mine: Any = self._own.definitions.get(id(definition))
        if mine is None:
            mine = copy.copy(definition)
            mine.cached_result = None
            mine._finalizers = []
            self._own.definitions[id(definition)] = mine
            # Asked for again, it is already what it should be.
            self._own.definitions[id(mine)] = mine
        return mine  # type: ignore[no-any-return]
