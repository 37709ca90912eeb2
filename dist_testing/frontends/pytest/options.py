"""The `--dist-*` options of pytest."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest

from dist_testing.attach.rank_info import RankInfo
from dist_testing.backends import Backend, backend_named
from dist_testing.budget import MAX_TIMEOUT_S
from dist_testing.errors import UsageError
from dist_testing.frontends.pytest.debugger import debug_rank
from dist_testing.frontends.pytest.session_events import OPTION
from dist_testing.spec import (
    DEFAULT_WORLD_SIZE,
    ISOLATIONS,
    MAX_WORLD_SIZE,
    Spec,
    check_isolation,
)

__all__ = ["Options", "add_options", "check_plugins", "read_options"]

# What `-p no:...` calls a plugin of pytest, and what it is registered as.
_NEEDED_PLUGINS = {
    "capture": "capturemanager",
    "debugging": "debugging",
    "skipping": "skipping",
    "terminal": "terminalreporter",
}


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line and the target's spec ask for together.

    Attributes:
        spec: The target's, with what the command line says in its place.
        timeout_s: Limit of a case that names none, in seconds.
        fail_on_missing: Missing hardware is a failure even if nothing was promised.
        debug_rank: The rank that gets the terminal; None for none.
    """

    spec: Spec
    timeout_s: float
    fail_on_missing: bool
    debug_rank: int | None


def add_options(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("distributed", "distributed tests (dist_testing)")
    group.addoption("--dist-backend", metavar="NAME", help="backend of the worlds (default: gloo)")
    group.addoption(
        "--dist-world-size",
        metavar="N[,N...]",
        help=f"ranks of tests that do not say; each number makes a case (default: {DEFAULT_WORLD_SIZE})",
    )
    group.addoption(
        "--dist-ranks-per-gpu",
        metavar="N",
        help="ranks that share a GPU, with a backend that can (default: 1)",
    )
    group.addoption(
        "--dist-isolation",
        metavar="LAUNCHER",
        help=f"one of {', '.join(ISOLATIONS)} (default: the backend's, mostly fork)",
    )
    group.addoption("--dist-timeout", metavar="SECONDS", help="limit of a case that does not say")
    group.addoption(
        "--dist-on-missing",
        metavar="skip|fail",
        help="what to do when the machine lacks what a test needs (default: skip, unless it was promised)",
    )
    group.addoption(
        "--dist-debug-rank",
        metavar="RANK",
        help="give the terminal to this rank, for breakpoint() and --pdb; nothing times out",
    )
    group.addoption(
        OPTION,
        metavar="FILE",
        help='write what happens in the run, with times, as JSON lines; ".gz" at the end compresses',
    )


def read_options(config: pytest.Config, target: Spec | None, rank_info: RankInfo | None) -> Options:
    """Read the options.

    Args:
        config: pytest's.
        target: The spec of the Bazel target; None outside Bazel.
        rank_info: This process's in a world that exists; None if there is none.

    Raises:
        UsageError: If a value is impossible.
    """
    spec = _spec(config, target, rank_info)
    on_missing = _choice(config, "--dist-on-missing", ("skip", "fail"))
    return Options(spec, _timeout_s(config, spec), on_missing == "fail", debug_rank(config, rank_info))


def check_plugins(config: pytest.Config) -> None:
    """Refuse to go without what pytest is known to bring.

    Raises:
        UsageError: If a plugin of pytest itself is missing.
    """
    for option, name in _NEEDED_PLUGINS.items():
        if not config.pluginmanager.has_plugin(name):
            raise UsageError(
                f"-p no:{option}: the plugin {name} of pytest is missing.\n"
                "A distributed test is reported, skipped and debugged by pytest's own means, and this is one of them.\n"
                f"Run distributed tests without -p no:{option}."
            )


def _spec(config: pytest.Config, spec: Spec | None, rank_info: RankInfo | None) -> Spec:
    name = config.getoption("--dist-backend")
    backend = backend_named(name) if name else (spec.backend if spec else backend_named("gloo"))
    sizes = _sizes(config.getoption("--dist-world-size"))
    isolation = _choice(config, "--dist-isolation", ISOLATIONS)
    if isolation is None:
        # What the target says was said of its own backend.
        fits = spec is not None and spec.isolation in backend.isolations
        isolation = spec.isolation if spec and fits else backend.isolations[0]
    check_isolation("the options of this run", backend, isolation)
    if spec is None:
        every = rank_info.size if rank_info else DEFAULT_WORLD_SIZE
        spec = Spec("", backend, (every,), backend.gpus_per_rank)
    gpus_per_rank = backend.gpus_per_rank if name else spec.gpus_per_rank
    shared: str | None = config.getoption("--dist-ranks-per-gpu")
    ranks_per_gpu = 1 if name else spec.ranks_per_gpu
    if shared is not None:
        ranks_per_gpu = _ranks_per_gpu(shared, backend, gpus_per_rank)
    return dataclasses.replace(
        spec,
        backend=backend,
        world_sizes=sizes or spec.world_sizes,
        gpus_per_rank=gpus_per_rank,
        ranks_per_gpu=ranks_per_gpu,
        isolation=isolation,
    )


def _sizes(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = text.split(",")
    if not all(part.isascii() and part.isdecimal() and 1 <= int(part) <= MAX_WORLD_SIZE for part in parts):
        raise UsageError(
            f"--dist-world-size={text}: expected numbers from 1 to {MAX_WORLD_SIZE}, separated by commas.\n"
            "Each is the size of a world, and makes a case of every test that does not say its own.\n"
            "Write --dist-world-size=4, or --dist-world-size=2,4."
        )
    return tuple(dict.fromkeys(int(part) for part in parts))


def _ranks_per_gpu(text: str, backend: Backend, gpus_per_rank: int) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= MAX_WORLD_SIZE):
        raise UsageError(
            f"--dist-ranks-per-gpu={text}: expected a number from 1 to {MAX_WORLD_SIZE}.\n"
            "It says how many ranks share a GPU; by default each has its own.\n"
            "Write --dist-ranks-per-gpu=2, for example."
        )
    count = int(text)
    if count > 1 and not (backend.shares_gpus and gpus_per_rank == 1):
        raise UsageError(
            f"--dist-ranks-per-gpu={count} with backend {backend.name} and {gpus_per_rank} GPU(s) per rank.\n"
            "Ranks can share a GPU where each needs one, and the backend does not mind; NCCL refuses it.\n"
            "Use --dist-backend=cuda_gloo, or leave the option out."
        )
    return count


def _choice(config: pytest.Config, option: str, allowed: tuple[str, ...]) -> str | None:
    value: str | None = config.getoption(option)
    if value is not None and value not in allowed:
        raise UsageError(
            f"{option}={value}: expected one of {', '.join(allowed)}.\n"
            "The option has no other values.\n"
            f"Write {option}={allowed[0]}, for example, or leave it out."
        )
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
        raise UsageError(
            f"--dist-timeout={text}: expected a number of seconds above 0, up to {MAX_TIMEOUT_S}.\n"
            "It is the limit of each case that does not say its own.\n"
            f"Write --dist-timeout=60, for example; without it the limit is {spec.backend.timeout_s} s."
        )
    return value
