"""The private names of pytest that the library uses, in one place: a new version of pytest may move them.

`xfailed_key` is that of the mark that pytest has chosen for an item, an `Xfail`; `evaluate_xfail_marks` chooses it, and
`finding_added_xfail` again around the call. `evaluate_skip_marks` tells if a mark skips an item.
`parse_expression` parses that of `-k`. `threaded.pytest_items` has the names that ranks need that are threads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, TextIO

import pytest
from _pytest.config.findpaths import load_config_dict_from_file
from _pytest.main import FSHookProxy
from _pytest.mark import _parse_expression as parse_expression
from _pytest.skipping import Xfail, evaluate_skip_marks, evaluate_xfail_marks, xfailed_key
from _pytest.skipping import pytest_runtest_call as finding_added_xfail

__all__ = [
    "Xfail",
    "evaluate_skip_marks",
    "evaluate_xfail_marks",
    "finding_added_xfail",
    "load_config_dict_from_file",
    "parse_expression",
    "xfailed_key",
]


def hooks_without(hooks: Any, plugins: Iterable[object], config: pytest.Config) -> Any:
    """Return the hooks of an item without those of some plugins; `hooks` may leave out conftests of other folders."""
    return FSHookProxy(config.pluginmanager, {*plugins, *getattr(hooks, "remove_mods", ())})


def replace_setup_state(session: pytest.Session, make: Callable[[type], Any]) -> None:
    """Replace what knows which fixtures are set up by what `make` makes of its class."""
    session._setupstate = make(type(session._setupstate))


def write_terminal_to(config: pytest.Config, file: TextIO) -> TextIO:
    """Have pytest write its own output to a file; return the one before."""
    writer = vars(config.get_terminal_writer())
    before: TextIO
    before, writer["_file"] = writer["_file"], file
    return before


def keep_temporary_files_in(config: pytest.Config, path: str | os.PathLike[str]) -> None:
    """Have the fixtures for temporary files make their folder at a path, when a test uses one.

    Otherwise each rank makes a numbered folder outside the run's folder, and nothing removes it.
    """
    for factory in vars(config).values():
        if isinstance(factory, pytest.TempPathFactory):
            # In place, because the factory of `tmpdir` holds it, too.
            vars(factory).update(_basetemp=None, _given_basetemp=path)
