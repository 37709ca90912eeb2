"""Declares the `--dist-*` options and the ini options of pytest, and reads the one that names the library's marker.

`option_values` reads the others.

The plugin imports this module in every session, so it imports nothing that takes time.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from typing import Any

import pytest

from dist_testing.core.ground.add_ons import AddOn, add_ons, blaming
from dist_testing.core.ground.backends import default_backend
from dist_testing.core.ground.case import ENV_PREFIX, KEEPABLE
from dist_testing.core.ground.errors import DistTestingError, UsageError
from dist_testing.core.ground.spec import DEFAULT_WORLD_SIZE

# The ini option that names the marker, and the name without it.
MARKER_OPTION = "dist_marker"
_DEFAULT_NAME = "distributed"

# For texts of help. The table itself is in `launch.isolation`, which takes long to import.
ISOLATIONS = "fork, spawn, pool or thread"
# Argument of the marker to its text for the user: "TYPE: MEANING (default: VALUE)".
_ARGUMENTS = {
    "world_size": "int or list of int: number of ranks; each number of a list makes a case "
    f"(default: --dist-world-size, else the target's, else {DEFAULT_WORLD_SIZE})",
    "init": "bool: whether the library makes the default process group, and destroys it after a pass (default: True)",
    "timeout": "float: limit of the case in seconds (default: --dist-timeout, else the backend's)",
    "isolation": f"str: how ranks are made: {ISOLATIONS}; with pool, the tests of a class or module share their ranks "
    "(default: --dist-isolation, else the target's, else the backend's)",
    "expected_exits": "dict[int, int]: rank to the exit code that its process must end with; a negative code is a "
    "signal, as {1: -9} (default: every process must end with 0)",
    "backends": "list of str: names of the backends that the test is for; with others it is deselected (default: all)",
    "features": "list of str: features that a backend must have; with other backends the test is deselected "
    "(default: none)",
    "strict_collectives": "bool: whether the test fails if its ranks pass but make different collective calls "
    "(default: --dist-strict-collectives)",
}
# The ini option that lists what a worker pool lets a test leave changed.
KEEPS_OPTION = "dist_pool_keeps"
EVENTS_OPTION = "--dist-events"
JOBS_OPTION = "--dist-jobs"
WATCH_OPTION = "--dist-watch"

# Option to the name of its value, "" for none, and its text.
_OPTIONS = {
    "--dist-backend": ("NAME", f"backend of the worlds (default: {default_backend().name})"),
    "--dist-world-size": (
        "N[,N...]",
        f"ranks of a test that sets no world_size; each number makes a case (default: {DEFAULT_WORLD_SIZE})",
    ),
    "--dist-isolation": ("ISOLATION", f"how ranks are made: {ISOLATIONS} (default: the target's, else the backend's)"),
    "--dist-timeout": ("SECONDS", "limit of a case that sets no timeout (default: the backend's)"),
    "--dist-on-missing": (
        "skip|fail",
        "what to do with a test whose hardware the machine lacks (default: skip, or fail if it is promised)",
    ),
    "--dist-strict-collectives": (
        "",
        "fail a test whose ranks pass but make different collective calls (default: compare calls only after a "
        "failure)",
    ),
    "--dist-debug-rank": ("RANK", "give this rank the terminal, for breakpoint() and --pdb; no limit applies"),
    JOBS_OPTION: (
        "N|auto",
        "number of worlds that run side by side; auto: as many as the CPUs, GPUs and memory allow (default: 1)",
    ),
    WATCH_OPTION: (
        "",
        "run the tests again after each save of a file, in forks of a process that has imported torch",
    ),
    EVENTS_OPTION: (
        "FILE",
        "write the events of the run, with times, as JSON lines; a name that ends in .gz compresses them",
    ),
}


def add_options(parser: pytest.Parser) -> None:
    """Declare the options."""
    parser.addini(
        MARKER_OPTION,
        "name of the marker that runs a test on ranks; set it if the project has its own marker distributed "
        "(default: distributed)",
        default="",
    )
    parser.addini(
        KEEPS_OPTION,
        f"what a test in a worker pool may leave changed: {', '.join(KEEPABLE)}, {ENV_PREFIX}NAME (default: nothing)",
        type="args",
        default=[],
    )
    options = dict(_OPTIONS)
    for add_on in _loadable():
        options |= {option: ("VALUE", text) for option, text in add_on.options.items()}
        options |= {flag: ("", text) for flag, text in add_on.flags.items()}
        for name, text in add_on.ini.items():
            parser.addini(name, text, default="")
    group = parser.getgroup("distributed", "distributed tests (dist_testing)")
    for option, (value, text) in options.items():
        kind: dict[str, Any] = {"metavar": value} if value else {"action": "store_true"}
        group.addoption(option, help=text, **kind)


def _loadable() -> tuple[AddOn, ...]:
    """Return the add-ons; none if one cannot be loaded, which must not end a session without distributed tests."""
    with contextlib.suppress(DistTestingError, OSError):
        return add_ons()
    return ()


def add_marks(config: pytest.Config) -> None:
    """Register the library's marker, and the marks that add-ons give to tests."""
    marks = {mark: text for add_on in _loadable() for mark, text in add_on.marks.items()}
    for line in (f"{marker_name(config)}{marker_help()}", *(f"{mark}: {text}" for mark, text in marks.items())):
        config.addinivalue_line("markers", line)


def with_plugin(config: pytest.Config) -> list[AddOn]:
    """Return the add-ons whose plugin of pytest the session has, by its command line, its ini file or its target."""
    return [
        add_on
        for add_on in _loadable()
        if add_on.pytest_plugin
        and (
            any(config.getoption(option) not in (None, False) for option in (*add_on.options, *add_on.flags))
            or any(map(config.getini, add_on.ini))
            or named_marks(config, add_on.marks)
            or add_on.in_session(config)
        )
    ]


def register_plugin(config: pytest.Config, add_on: AddOn) -> None:
    """Register the plugin of an add-on, once."""
    name = f"dist_testing_{add_on.name}"
    if not config.pluginmanager.hasplugin(name):
        with blaming(add_on.name, "its plugin of pytest"):
            plugin = add_on.load("pytest_plugin")(config)
        if plugin is not None:
            config.pluginmanager.register(plugin, name)


def named_marks(config: pytest.Config, marks: Iterable[str]) -> list[str]:
    """Return the names in the expression of `-m` that have the form of one of these marks, with a number for an N."""
    forms = "|".join(mark.replace("N", "[0-9]+") for mark in marks)
    return re.findall(rf"\b(?:{forms})\b", config.option.markexpr) if forms else []


def argument_texts() -> dict[str, str]:
    """Return the texts of the marker's arguments, by name, those for add-ons at the end: as "TYPE: MEANING"."""
    return _ARGUMENTS | {add_on.name: add_on.setting_help for add_on in add_ons() if add_on.setting}


def marker_help() -> str:
    """Return the line for `pytest --markers`, without the marker's name."""
    texts = argument_texts() if _loadable() else _ARGUMENTS
    told = " ".join(f"{name} ({text.replace(': ', '): ', 1)}." for name, text in texts.items())
    return f"({', '.join(f'{name}=...' for name in texts)}): run the test on every rank of a world. {told}"


def arguments_of_part(config: pytest.Config) -> tuple[str, ...]:
    """Return the command line for an interpreter that takes part in the session."""
    arguments = [str(argument) for argument in config.invocation_params.args]
    return (
        *(argument for argument in arguments if argument != WATCH_OPTION),
        # A worker of pytest-xdist gets the arguments of its controller; it must not start workers.
        *(("-n", "0") if hasattr(config.option, "numprocesses") else ()),
    )


def has_options(config: pytest.Config) -> bool:
    """Return whether the command line has an option of the library."""
    # An option that is not given is None, or False if it takes no value.
    return any(value not in (None, False) for name, value in vars(config.option).items() if name.startswith("dist_"))


def shows_output_at_once(config: pytest.Config) -> bool:
    """Return whether pytest shows output at once: with `-s`, `--capture=tee-sys` or `-p no:capture`."""
    return config.getoption("capture", "no") in ("no", "tee-sys")


def marker_name(config: pytest.Config | Any) -> str:
    """Return the name of the library's marker: the value of the ini option `dist_marker`, by default `distributed`."""
    name: str = config.getini(MARKER_OPTION) or _DEFAULT_NAME
    if not name.isidentifier() or name.startswith("_"):
        raise UsageError(
            f"{MARKER_OPTION} = {name}: this cannot be the name of a marker.\n"
            "The ini option names the marker that runs a test on ranks, and Python code writes it as an attribute.\n"
            f"Write {MARKER_OPTION} = ranks, for example, or leave it out; the marker is then {_DEFAULT_NAME}."
        )
    return name


def has_mark(item: pytest.Item | Any) -> bool:
    """Return whether a test function or an item has a marker of the library's name, perhaps the project's own."""
    return item.get_closest_marker(marker_name(item.config)) is not None
