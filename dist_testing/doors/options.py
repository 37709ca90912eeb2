"""The `--dist-*` options of pytest."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from dist_testing.backends import backend_named
from dist_testing.budget import MAX_TIMEOUT_S
from dist_testing.errors import UsageError
from dist_testing.spec import DEFAULT_WORLD_SIZE, ISOLATIONS, MAX_WORLD_SIZE, Spec

__all__ = ["Options", "add_options", "read_options"]


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line and the target's spec ask for together.

    Attributes:
        spec: The target's, with what the command line says in its place.
        timeout_s: Limit of a case that names none, in seconds.
        fail_on_missing: Missing hardware is a failure even if nothing was promised.
    """

    spec: Spec
    timeout_s: float
    fail_on_missing: bool


def add_options(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("distributed", "distributed tests (dist_testing)")
    group.addoption("--dist-backend", metavar="NAME", help="backend of the worlds (default: gloo)")
    group.addoption(
        "--dist-world-size",
        metavar="N[,N...]",
        help=f"ranks of tests that do not say; each number makes a case (default: {DEFAULT_WORLD_SIZE})",
    )
    group.addoption("--dist-isolation", metavar="LAUNCHER", help=f"one of {', '.join(ISOLATIONS)} (default: fork)")
    group.addoption("--dist-timeout", metavar="SECONDS", help="limit of a case that does not say")
    group.addoption(
        "--dist-on-missing",
        metavar="skip|fail",
        help="what to do when the machine lacks what a test needs (default: skip, unless it was promised)",
    )


def read_options(config: pytest.Config, target: Spec | None) -> Options:
    """Read the options.

    Args:
        config: pytest's.
        target: The spec of the Bazel target; None outside Bazel.

    Raises:
        UsageError: If a value is impossible.
    """
    spec = _spec(config, target)
    on_missing = _choice(config, "--dist-on-missing", ("skip", "fail"))
    return Options(spec, _timeout_s(config, spec), on_missing == "fail")


def _spec(config: pytest.Config, spec: Spec | None) -> Spec:
    name = config.getoption("--dist-backend")
    backend = backend_named(name) if name else (spec.backend if spec else backend_named("gloo"))
    sizes = _sizes(config.getoption("--dist-world-size"))
    isolation = _choice(config, "--dist-isolation", ISOLATIONS)
    return Spec(
        target=spec.target if spec else "",
        backend=backend,
        world_sizes=sizes or (spec.world_sizes if spec else (DEFAULT_WORLD_SIZE,)),
        gpus_per_rank=backend.gpus_per_rank if name or spec is None else spec.gpus_per_rank,
        isolation=isolation or (spec.isolation if spec else "fork"),
        srcs=spec.srcs if spec else (),
        promised_gpus=spec.promised_gpus if spec else None,
        file=spec.file if spec else None,
    )


def _sizes(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = text.split(",")
    if not all(part.isascii() and part.isdecimal() and 1 <= int(part) <= MAX_WORLD_SIZE for part in parts):
        raise UsageError(f"--dist-world-size={text}: expected numbers from 1 to {MAX_WORLD_SIZE}, separated by commas.")
    return tuple(dict.fromkeys(int(part) for part in parts))


def _choice(config: pytest.Config, option: str, allowed: tuple[str, ...]) -> str | None:
    value: str | None = config.getoption(option)
    if value is not None and value not in allowed:
        raise UsageError(f"{option}={value}: expected one of {', '.join(allowed)}.")
    return value


def _timeout_s(config: pytest.Config, spec: Spec) -> float:
    text: str | None = config.getoption("--dist-timeout")
    if text is None:
        return float(spec.backend.timeout_s)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= MAX_TIMEOUT_S:
        raise UsageError(f"--dist-timeout={text}: expected a number of seconds above 0, up to {MAX_TIMEOUT_S}.")
    return value
