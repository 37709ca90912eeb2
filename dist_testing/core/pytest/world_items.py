"""Items whose call runs a world. pytest runs them in its own protocol, with its own skips, xfail marks and reports.

In the runner, the setup of such an item sets no fixture up, and its call runs the world. On a rank the same item is an
ordinary test function.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dist_testing.core.ground.case import CaseFailedError, CaseResult
from dist_testing.core.ground.errors import DistTestingError
from dist_testing.core.ground.outcomes import Cause
from dist_testing.core.pytest.internals import hooks_without
from dist_testing.core.pytest.marked_items import RUN_KEY
from dist_testing.core.pytest.pytest_rank import current_world
from dist_testing.core.pytest.reports import decide_xfail, note_xfail_marks, text_at_test
from dist_testing.core.session.session import loaded_class

# By file: the hooks of its items in the runner.
_HOOKS_KEY = pytest.StashKey[dict[Path, Any]]()
# Properties that an item had before its first try.
_PROPERTIES_KEY = pytest.StashKey[Iterable[tuple[str, object]]]()
# pytest itself acts on them, or looks into them.
_SPECIAL = (pytest.exit.Exception, ExceptionGroup)


class RanksFailedError(CaseFailedError):
    """A marked test failed on its ranks; the text is the whole report.

    For `isinstance`, and so for other plug-ins, it also is what the culprit has raised.
    """

    def __init__(self, text: str, result: CaseResult) -> None:
        super().__init__(text, result)
        culprit = result.verdict.culprit
        names = () if culprit is None else result.outcomes[culprit].types.split()
        # The nearest class that this process has.
        found = next((cls for name in names if (cls := loaded_class(name)) is not None), None)
        is_known = found is not None and issubclass(found, Exception) and not issubclass(found, _SPECIAL)
        self._raised = found if is_known else None

    @property  # type: ignore[misc]  # as a mock does
    def __class__(self) -> type:
        return self._raised or type(self)


class _ValuesOnRanks(dict[str, Any]):
    """The values of an item's fixtures in the runner, which has none. Hooks in projects read them."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self._names = names

    def __missing__(self, name: str) -> str:
        if name not in self._names:
            raise KeyError(name)
        return f"<{name}: on the ranks only>"


class WorldItem(pytest.Function):
    """A marked test function."""

    @property
    def ihook(self) -> Any:
        """pytest's hooks for this item; in the runner without the capture of log records, which are in the ranks' logs.

        The capture adds two handlers to each of torch's 42 loggers, three times per test: 4 % of a case in a pool.
        """
        plugin = self.config.pluginmanager.getplugin("logging-plugin")
        if plugin is None or current_world() is not None:
            return super().ihook
        made = self.session.stash.setdefault(_HOOKS_KEY, {})
        if self.path not in made:
            made[self.path] = hooks_without(super().ihook, [plugin], self.config)
        return made[self.path]

    def setup(self) -> None:
        """On a rank, set the fixtures up."""
        if current_world() is not None:
            note_xfail_marks(self)
            super().setup()
            return
        self.funcargs = _ValuesOnRanks(self.fixturenames)
        # What an earlier try of the same test has added is over.
        self.user_properties[:] = self.stash.setdefault(_PROPERTIES_KEY, list(self.user_properties))
        if self.config.getoption("setuponly", False):
            # With --setup-only and --setup-plan, pytest does not call the test.
            self.config.stash[RUN_KEY](self)

    def runtest(self) -> None:
        """Run the world; on a rank, call the test function."""
        if current_world() is not None:
            super().runtest()
        else:
            self.config.stash[RUN_KEY](self)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the text of an error of this library alone: it is written for the user."""
        del style
        if isinstance(excinfo.value, CaseFailedError | DistTestingError):
            return text_at_test(self, str(excinfo.value))
        return super().repr_failure(excinfo)


def make_world_item(item: pytest.Function) -> None:
    """Make the item of a marked function a `WorldItem`. It stays one of its own class, too."""
    # A conftest may repeat items, as in `items *= 2`.
    if not isinstance(item, WorldItem):
        item.__class__ = _world_item(type(item))


@functools.cache
def _world_item(cls: type[pytest.Function]) -> type[pytest.Function]:
    bases = (WorldItem,) if cls is pytest.Function else (WorldItem, cls)
    return type(cls.__name__, bases, {})


@contextlib.contextmanager
def ended_from_outside(item: pytest.Item) -> Iterator[None]:
    """Explain a failure that another plug-in raises, by a signal, while the runner waits for the ranks."""
    try:
        yield
    except pytest.fail.Exception as error:
        decide_xfail(item, is_expected=False)
        item.user_properties.append(("cause", Cause.INTERRUPTED.value))
        raise pytest.fail.Exception(
            f"{item.nodeid}: {error}\n"
            "Another plugin, such as pytest-timeout, has ended the wait for the ranks; they have been killed.\n"
            "Set the limit of a distributed test by the marker's timeout or --dist-timeout: its report names the rank "
            "that did not arrive.",
            pytrace=False,
        ) from None
