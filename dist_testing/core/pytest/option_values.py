"""Reads the values of the `--dist-*` options, and raises a UsageError for a wrong one. `options` declares them."""

from __future__ import annotations

import dataclasses
import os

import pytest

from dist_testing.core.ground.add_ons import add_on_named, add_ons, blaming
from dist_testing.core.ground.backends import Backend, backend_named, default_backend
from dist_testing.core.ground.budget import MAX_TIMEOUT_S, timeout_in
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.spec import DEFAULT_WORLD_SIZE, MAX_WORLD_SIZE, Spec, is_world_size, number_in
from dist_testing.core.launch.isolation import check_isolation, default_isolation, isolation_named, isolation_names
from dist_testing.core.session.existing_world import ExistingRank

# What the hook pytest_dist_backends returns, or a list of such.
Declaration = str | os.PathLike[str] | Backend


def read_spec(config: pytest.Config, spec: Spec | None, rank_info: ExistingRank | None) -> Spec:
    """Return the spec of the Bazel target, if there is one, with the values that the options override."""
    name = config.getoption("--dist-backend")
    backend = backend_named(name) if name else (spec.backend if spec else default_backend())
    named = chosen(config, "--dist-isolation", isolation_names())
    # With another backend than the target's own, the target's isolation may not fit.
    if not named and spec is not None and (not name or isolation_named(spec.isolation).fits(backend)):
        named = spec.isolation
    isolation = isolation_named(named) if named else default_isolation(backend)
    check_isolation("the options of this run", backend, isolation)
    if spec is None:
        every = rank_info.size if rank_info else DEFAULT_WORLD_SIZE
        spec = Spec("", backend, (every,), isolation.name)
    text: str | None = config.getoption("--dist-world-size")
    sizes = spec.world_sizes if text is None else _sizes(text)
    spec = dataclasses.replace(spec, backend=backend, world_sizes=sizes, isolation=isolation.name)
    settings = dict(spec.settings)
    for add_on in add_ons():
        texts = {option: config.getoption(option) for option in add_on.options}
        given = {option: text for option, text in texts.items() if text is not None}
        if given and add_on.from_options:
            with blaming(add_on.name, f"the reading of {', '.join(given)}"):
                settings[add_on.name] = add_on.load("from_options")(spec, given)
    return dataclasses.replace(spec, settings=settings)


def _sizes(text: str) -> tuple[int, ...]:
    sizes = list(map(number_in, text.split(",")))
    if not all(map(is_world_size, sizes)):
        raise UsageError(
            f"--dist-world-size={text}: expected numbers from 1 to {MAX_WORLD_SIZE}, separated by commas.\n"
            "Each is the size of a world, and makes one case of every test that sets no world_size.\n"
            "Write --dist-world-size=4, or --dist-world-size=2,4."
        )
    return tuple(dict.fromkeys(filter(None, sizes)))


def chosen(config: pytest.Config, option: str, allowed: tuple[str, ...]) -> str | None:
    """Return the value of an option that has only these; None without the option."""
    value: str | None = config.getoption(option)
    if value is not None and value not in allowed:
        raise UsageError(
            f"{option}={value}: expected one of {', '.join(allowed)}.\n"
            "The option has no other values.\n"
            f"Write {option}={allowed[0]}, for example, or leave it out."
        )
    return value


def timeout_s(config: pytest.Config, spec: Spec) -> float:
    """Return the limit of a case that sets none, in seconds."""
    text: str | None = config.getoption("--dist-timeout")
    if text is None:
        return float(spec.backend.timeout_s)
    if (value := timeout_in(text)) is None:
        raise UsageError(
            f"--dist-timeout={text}: expected a number of seconds above 0, up to {MAX_TIMEOUT_S}.\n"
            "It is the limit of each case that sets no timeout.\n"
            f"Write --dist-timeout=60, for example; without it the limit is {spec.backend.timeout_s} s."
        )
    return value


def declared_backends(config: pytest.Config) -> list[tuple[Backend, str]]:
    """Return the backends that the hook declares, each with the place of its declaration."""
    found: list[tuple[Backend, str]] = []
    for result in config.hook.pytest_dist_backends():
        for declaration in result if isinstance(result, list | tuple) else [result]:
            if isinstance(declaration, Backend):
                found.append((declaration, f"the hook pytest_dist_backends ({declaration.torch_backend})"))
            elif isinstance(declaration, str | os.PathLike):
                path = os.fspath(declaration)
                read = add_on_named("backend_files", f"The hook pytest_dist_backends with {path}").load("read")
                found += [(backend, path) for backend in read(path)]
            else:
                raise UsageError(
                    f"The hook pytest_dist_backends has returned {declaration!r}.\n"
                    "It returns the path of a .bzl file that declares a backend, a Backend, or a list of these.\n"
                    'Return [Path(__file__).parent / "backend.bzl"], for example.'
                )
    return found
