"""Finds the add-ons of a run and loads their parts.

An add-on is a value of `AddOn` that names its parts as text, "module:attribute". A part is imported when it is needed,
and only in the process that needs it: the runner, the fork server or a rank. So an add-on costs nothing where no case
uses it.

Installed packages declare theirs by an entry point of the group `dist_testing`. The library's own are in
`dist_testing.built_in`, because a checkout that runs without installation has no entry points.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
import unittest
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dist_testing.core.ground.error_text import format_error, summarise
from dist_testing.core.ground.errors import AddOnError, DistTestingError, UsageError

if TYPE_CHECKING:
    from dist_testing.core.ground.case import Case
    from dist_testing.core.ground.spec import Spec

# Of the extension interface. Raised when an add-on that was written for the number before could go wrong.
EXT_VERSION = 1
# Of the entry points.
GROUP = "dist_testing"
_BUILT_IN = "dist_testing.built_in"


def always(case: Case, spec: Spec) -> bool:
    """Return True: the add-on takes part in every case."""
    del case, spec
    return True


def never(config: object) -> bool:
    """Return False: the add-on waits until a session asks for it."""
    del config
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class AddOn:
    """What one add-on adds to the worlds of a run. `dist_testing.ext` documents the parts.

    Attributes:
        name: Short and unique, such as "redis". Errors name it, and its messages carry it.
        ext_version: The version of the extension interface that it was written for: the `EXT_VERSION` of that time.
        order: Add-ons take part in ascending order, and end in the opposite one; by name if the numbers are equal.
        wanted: Whether it takes part in a case. It must be cheap, and must not import the parts.
        check: A function of `Case` and `Spec` that raises `UsageError` if the case is not possible with this add-on.
        missing: A function of `Case` and `Spec` that returns what this machine lacks, as a skip reason; "" for nothing.
            A `Lack` if it is about hardware or there is a way out. The case is no real one: only its size and its
            settings are known.
        resource: A `WorldResource`, made without arguments.
        watcher: A `WorldWatcher`, made with the `WatchedWorld`.
        explainer: An `Explainer`.
        rerun: A function of a result and of a function that runs a `Case` again. It returns the result that counts,
            also if the case cannot run again, which is a `UsageError`.
        setting: A function that reads the user's setting for the add-on, from the subject of an error text and the
            value; it raises `UsageError` if the value is wrong. The marker then has an argument of the add-on's name,
            unittest classes have an attribute, and targets a key of `settings`. What the function returns is in
            `Case.settings`.
        setting_help: The setting for the user, on one line: "TYPE: MEANING (default: VALUE)".
        target: A function that reads what only targets can set, from the `Spec` without settings and the value. It has
            the place of `setting` there.
        promised: A function of `Spec` and world size that returns what the configuration promises of the hardware, as
            in "promises 4 GPU(s)"; "" for nothing. A case that lacks it fails, and is not skipped.
        options: Options of the command line, `--dist-...`, to a line of help; each has a value.
        from_options: A function that returns the setting of a run, from its `Spec` and from the options that the user
            has given, with their texts.
        flags: Options of the command line without a value, `--dist-...`, to a line of help.
        ini: Options of pytest's ini file, `dist_...`, to a line of help; each has a text.
        marks: Marks of pytest that `pytest_plugin` gives to tests, to a line of help. N in a name stands for a number.
        in_session: Whether a session has `pytest_plugin`, from pytest's config, although it does not ask for it.
        pytest_plugin: What makes a plugin of pytest, or None, from the config of the session. A `UsageError` ends it.
            It is made and registered, as `dist_testing_<name>`, if the session has one of `options`, `flags`, `ini` or,
            in its `-m`, `marks`; if a test on ranks has the setting; or if `in_session` says so.
        on_world: What makes the attribute of `World` with the add-on's name, from the world, its runner and layout.
        rank_service: A `RankService`, made with a `ServedRank`.
        place: The class of a `WorldPlace`; the add-on then has the place of each world that it is wanted for.
        isolations: Isolations that the user can choose, by their names: each an `Isolation`.
        more: Further parts, by names that one caller asks for: for the front ends, which no stranger replaces yet.
        idle_work: An `IdleWork`, made with the number of ranks that the run will fork (0: not known).
    """

    name: str
    ext_version: int
    order: int = 0
    wanted: Callable[[Case, Spec], bool] = always
    check: str = ""
    missing: str = ""
    resource: str = ""
    watcher: str = ""
    explainer: str = ""
    rerun: str = ""
    setting: str = ""
    setting_help: str = "object: a setting of an add-on (default: none)"
    target: str = ""
    promised: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    from_options: str = ""
    flags: Mapping[str, str] = field(default_factory=dict)
    ini: Mapping[str, str] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)
    in_session: Callable[[Any], bool] = never
    pytest_plugin: str = ""
    on_world: str = ""
    rank_service: str = ""
    place: str = ""
    idle_work: str = ""
    isolations: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, str] = field(default_factory=dict)

    def load(self, part: str) -> Any:
        """Return what the attribute `part` of this value names, or that part of `more`. Imports its module.

        An import that fails, or a missing attribute, is an AddOnError.
        """
        return self.load_at(self.more[part] if part in self.more else getattr(self, part))

    def load_at(self, where: str) -> Any:
        """Return the attribute of a text "module:attribute", as `load`."""
        module, _, attribute = where.partition(":")
        with blaming(self.name, f"the import of {where!r}"):
            return getattr(importlib.import_module(module), attribute)


@contextlib.contextmanager
def blaming(name: str, doing: str) -> Iterator[None]:
    """Run code of an add-on: an error in it becomes one that names the add-on.

    Errors whose text this library or the add-on has written for the user, skips, and errors of the system stay as they
    are. `doing` is what the add-on does in the block, such as "its watcher".
    """
    try:
        yield
    except (DistTestingError, OSError, unittest.SkipTest):
        raise
    except Exception as error:
        raise AddOnError(
            f"Add-on {name!r}: {doing} raised {summarise(error)}.\n"
            "The add-on has a bug, or was written for another version of dist_testing.\n"
            f"Update or uninstall it, and tell its authors this traceback:\n{format_error(error).rstrip()}"
        ) from error


@functools.cache
def add_ons() -> tuple[AddOn, ...]:
    """Return the add-ons of this process in their order. The first call looks for installed packages.

    One that cannot be loaded, was written for another version, or has the name of another one is an AddOnError.
    """
    found: dict[str, AddOn] = {}
    own = importlib.import_module(_BUILT_IN).ADD_ONS if importlib.util.find_spec(_BUILT_IN) else ()
    for add_on in (*own, *_installed()):
        if add_on.ext_version != EXT_VERSION:
            raise AddOnError(
                f"Add-on {add_on.name!r} has ext_version = {add_on.ext_version}; this dist_testing has {EXT_VERSION}.\n"
                "The extension interface has changed in between.\n"
                "Install versions of the two that fit, or uninstall the add-on."
            )
        if found.setdefault(add_on.name, add_on) is not add_on:
            raise AddOnError(
                f"Add-on {add_on.name!r} exists twice.\n"
                "Two packages declare the same name, so messages could go to the wrong one.\n"
                "Uninstall one of them."
            )
    return tuple(sorted(found.values(), key=lambda add_on: (add_on.order, add_on.name)))


def add_on_named(name: str, needed_by: str) -> AddOn:
    """Return the add-on with a name, or raise AddOnError; `needed_by` begins its text, such as "nodes = 2"."""
    for add_on in add_ons():
        if add_on.name == name:
            return add_on
    raise AddOnError(
        f"{needed_by}: the add-on {name!r} is missing.\n"
        f"This dist_testing has {', '.join(add_on.name for add_on in add_ons()) or 'no add-ons'}.\n"
        "Install the package that brings it, or do without."
    )


def read_settings(subject: str, values: Mapping[str, Any], target: Spec | None = None) -> dict[str, Any]:
    """Read what a test asks of add-ons, by their names, or a target. None asks for nothing.

    A missing add-on is an AddOnError; a wrong value, or one without a setting, a UsageError; `subject` begins its text.
    """
    read = {}
    for name, value in values.items():
        if value is None:
            continue
        add_on = add_on_named(name, f"{subject} with {name} = {value!r}")
        with blaming(name, f"the reading of {name} = {value!r}"):
            if target is not None and add_on.target:
                read[name] = add_on.load("target")(target, value)
            elif add_on.setting:
                read[name] = add_on.load("setting")(subject, value)
            else:
                raise UsageError(
                    f"{subject} with {name} = {value!r}.\nThe add-on {name!r} has no setting there.\nLeave it out."
                )
    return read


def call_parts(name: str, *arguments: object) -> Iterator[tuple[AddOn, Any]]:
    """Call the part of this name in `more` of each add-on that has one; yield the add-on and the result."""
    for add_on in add_ons():
        if name in add_on.more:
            with blaming(add_on.name, f"its part {name!r}"):
                result = add_on.load(name)(*arguments)
            yield add_on, result


def _installed() -> Iterator[AddOn]:
    for point in importlib.metadata.entry_points(group=GROUP):
        with blaming(point.name, f"its entry point {point.value!r}"):
            add_on = point.load()
            if not isinstance(add_on, AddOn):
                raise TypeError(f"it is {add_on!r}, and no dist_testing.ext.AddOn")
        yield add_on
