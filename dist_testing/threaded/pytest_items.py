"""Makes pytest items for ranks that are threads of one process.

pytest keeps the state of a running test in the item, its fixture definitions, the session's setup state, and the
config. All of these exist once per process; this module gives each thread its own.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dist_testing.core.ground.errors import CollectiveError
from dist_testing.core.launch.isolation import FORK
from dist_testing.core.pytest.internals import replace_setup_state
from dist_testing.threaded.members import OfThread

_Definitions = Sequence[pytest.FixtureDef[Any]]

_OUTPUT = "It captures the output of the whole process, and all ranks share one process."
# Fixture to the reason why ranks that are threads cannot use it.
_REASONS = {
    **dict.fromkeys(("capsys", "capsysbinary", "capteesys", "capfd", "capfdbinary"), _OUTPUT),
    "caplog": "It captures the log records of the whole process, and all ranks share one process.",
    "recwarn": "It records the warnings of the whole process, and all ranks share one process.",
    "anyio_backend": "anyio keeps one event loop for the whole process, and all ranks share one process.",
    "monkeypatch": "It changes the process that all ranks share, and each rank would undo changes of another one.",
}
# Fixture to the text of the error.
REFUSED_FIXTURES = {
    name: f"A rank that is a thread uses the fixture `{name}`.\n"
    f"{reason}\n"
    f'Give the test ranks that are processes: isolation="{FORK.name}" and a backend for them.'
    for name, reason in _REASONS.items()
}


class _Own(threading.local):
    """The state of one thread. A rank's thread lives for one case, so each case starts with new state."""

    def __init__(self, make_setup_state: Callable[[], Any]) -> None:
        self.setup_state = make_setup_state()
        self.definitions: dict[int, pytest.FixtureDef[Any]] = {}


# Python's parser, by which pytest finds the source of a statement, counts the recursion of all threads in one place
# up to Python 3.11, and raises SystemError when two threads parse.
_parsing = threading.Lock()


def _repr_failure(item: Any, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:
    if isinstance(excinfo.value, CollectiveError):
        # pytest's own style shows the source around each frame. For that it parses the whole torch module, which takes
        # seconds when all ranks of a world do it at once. The error's text names the call already. The native style
        # does not filter the frames below the test, so they are filtered here.
        excinfo.traceback = excinfo.traceback.cut(path=item.path).filter(excinfo)
        return pytest.Item.repr_failure(item, excinfo, style="native")
    with _parsing:
        return type(item).repr_failure(item, excinfo)


class ThreadItems:
    """Makes items for threads. It changes the session for good: the process runs only threads from then on."""

    def __init__(self, config: pytest.Config, session: pytest.Session) -> None:
        """Make pytest use the calling thread's state."""
        replace_setup_state(session, self._setup_state)
        # For `request.getfixturevalue`.
        manager: Any = session._fixturemanager
        find = manager.getfixturedefs
        manager.getfixturedefs = lambda *args: self._own_definitions(find(*args))
        # All threads would set the same environment variable, and the second one to remove it would fail.
        config.pluginmanager.getplugin("runner")._update_current_test_var = lambda item, when: None
        for name in ("capturemanager", "logging-plugin"):
            if config.pluginmanager.hasplugin(name):
                config.pluginmanager.unregister(name=name)

    def _setup_state(self, kind: type) -> OfThread:
        self._own = _Own(kind)
        return OfThread(lambda: self._own.setup_state)

    def own(self, item: pytest.Item) -> pytest.Item:
        """Return the calling thread's own copy of a collected item; call it once per thread."""
        assert isinstance(item, pytest.Function)
        info: Any = item._fixtureinfo
        definitions = {name: self._own_definitions(found) for name, found in info.name2fixturedefs.items()}
        # Each rank needs its own instance of a class. Another function may have been wrapped by a plug-in.
        own_function = {} if isinstance(item.parent, pytest.Class) else {"callobj": item.obj}
        mine: Any = type(item).from_parent(
            item.parent,
            name=item.name,
            originalname=item.originalname,
            **own_function,
            callspec=getattr(item, "callspec", None),
            fixtureinfo=dataclasses.replace(info, name2fixturedefs=definitions),
        )
        mine.config = copy.copy(item.config)
        for name, value in vars(item.config).items():
            if isinstance(value, pytest.TempPathFactory):
                # `keep_temporary_files_in` changes it.
                setattr(mine.config, name, copy.copy(value))
        mine.stash._storage.update(item.stash._storage)
        # Also those that were added after the item had been made.
        mine.own_markers, mine.keywords = list(item.own_markers), item.keywords
        mine.user_properties += item.user_properties
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
            # The copy maps to itself, so that it is not copied again.
            self._own.definitions[id(mine)] = mine
        return mine  # type: ignore[no-any-return]
