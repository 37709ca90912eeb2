"""Reads and checks the values of the `--dist-*` options. `options` declares them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest

from dist_testing.core.ground.add_ons import add_on_named
from dist_testing.core.ground.backends import Backend, backend_named, backends, default_backend
from dist_testing.core.ground.budget import MAX_TIMEOUT_S, timeout_in
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.ground.keepable import check_keepable
from dist_testing.core.ground.layout import check_node_count
from dist_testing.core.ground.spec import DEFAULT_WORLD_SIZE, MAX_WORLD_SIZE, Spec, is_world_size
from dist_testing.core.launch.isolation import check_isolation, default_isolation, isolation_named, isolation_names
from dist_testing.core.pytest.debugger import debug_rank
from dist_testing.core.pytest.options import JOBS_OPTION, KEEPS_OPTION
from dist_testing.core.session.existing_world import ExistingRank

# Name of a plugin of pytest in `-p no:...`, to the name that it is registered under.
_NEEDED_PLUGINS = {
    "capture": "capturemanager",
    "debugging": "debugging",
    "skipping": "skipping",
    "terminal": "terminalreporter",
}


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of a run, from the command line and the target's spec.

    Attributes:
        spec: The target's spec, with the values that the command line overrides.
        timeout_s: Limit of a case that sets none, in seconds.
        fail_on_missing: Whether missing hardware is a failure although the configuration does not promise it.
        debug_rank: The rank that gets the terminal; None for none.
        strict_collectives: Whether a case fails if its ranks make different collective calls.
        jobs: Number of worlds that run side by side; 0 for as many as the machine has room for.
        pool_keeps: The state that a test in a worker pool may leave changed, by the names of `keepable.KEEPABLE`.
    """

    spec: Spec
    timeout_s: float
    fail_on_missing: bool
    debug_rank: int | None
    strict_collectives: bool
    jobs: int
    pool_keeps: tuple[str, ...]


def read_options(config: pytest.Config, target: Spec | None, rank_info: ExistingRank | None) -> Options:
    """Read the options; they override the spec of the Bazel target, if there is one.

    Raises:
        UsageError: If a value is impossible.
    """
    spec = _spec(config, target, rank_info)
    text: str | None = config.getoption(JOBS_OPTION)
    jobs = 1 if text is None else add_on_named("jobs", f"{JOBS_OPTION}={text}").load("read")(text, config, rank_info)
    on_missing = _choice(config, "--dist-on-missing", ("skip", "fail"))
    keeps = check_keepable(f"The ini option {KEEPS_OPTION}", config.getini(KEEPS_OPTION))
    return Options(
        spec,
        _timeout_s(config, spec),
        on_missing == "fail",
        debug_rank(config, rank_info),
        bool(config.getoption("--dist-strict-collectives")),
        jobs,
        keeps,
    )


def check_plugins(config: pytest.Config) -> None:
    """Refuse a session that lacks a plugin of pytest that the library needs.

    Raises:
        UsageError: If such a plugin is switched off.
    """
    for option, name in _NEEDED_PLUGINS.items():
        if not config.pluginmanager.has_plugin(name):
            raise UsageError(
                f"-p no:{option}: the plugin {name} of pytest is missing.\n"
                "The library reports, skips and debugs a distributed test by plugins of pytest, and needs this one.\n"
                f"Run distributed tests without -p no:{option}."
            )


def _spec(config: pytest.Config, spec: Spec | None, rank_info: ExistingRank | None) -> Spec:
    name = config.getoption("--dist-backend")
    backend = backend_named(name) if name else (spec.backend if spec else default_backend())
    sizes = _sizes(config.getoption("--dist-world-size"))
    named = _choice(config, "--dist-isolation", isolation_names())
    isolation = isolation_named(named) if named else default_isolation(backend)
    if named is None and spec is not None:
        of_target = isolation_named(spec.isolation)
        # With another backend than the target's own, the target's isolation may not fit.
        if of_target.fits(backend) or not name:
            isolation = of_target
    check_isolation("the options of this run", backend, isolation)
    if spec is None:
        every = rank_info.size if rank_info else DEFAULT_WORLD_SIZE
        spec = Spec("", backend, (every,), backend.gpus_per_rank, isolation.name)
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
        isolation=isolation.name,
        nodes=_nodes(config.getoption("--dist-nodes"), spec.nodes),
    )


def _nodes(text: str | None, of_target: int) -> int:
    if text is None:
        return of_target
    return check_node_count("--dist-nodes", int(text) if text.isascii() and text.isdecimal() else text)


def _sizes(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = text.split(",")
    if not all(part.isascii() and part.isdecimal() and is_world_size(int(part)) for part in parts):
        raise UsageError(
            f"--dist-world-size={text}: expected numbers from 1 to {MAX_WORLD_SIZE}, separated by commas.\n"
            "Each is the size of a world, and makes one case of every test that sets no world_size.\n"
            "Write --dist-world-size=4, or --dist-world-size=2,4."
        )
    return tuple(dict.fromkeys(int(part) for part in parts))


def _ranks_per_gpu(text: str, backend: Backend, gpus_per_rank: int) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= MAX_WORLD_SIZE):
        raise UsageError(
            f"--dist-ranks-per-gpu={text}: expected a number from 1 to {MAX_WORLD_SIZE}.\n"
            "It sets how many ranks share a GPU; by default each rank has its own.\n"
            "Write --dist-ranks-per-gpu=2, for example."
        )
    count = int(text)
    if count > 1 and not (backend.shares_gpus and gpus_per_rank == 1):
        sharing = [name for name, other in backends().items() if other.shares_gpus]
        raise UsageError(
            f"--dist-ranks-per-gpu={count} with backend {backend.name} and {gpus_per_rank} GPU(s) per rank.\n"
            "Ranks can share a GPU only if each needs one GPU and the backend allows it; NCCL does not.\n"
            f"Use one of the backends {', '.join(sharing)}, or leave the option out."
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
    if (value := timeout_in(text)) is None:
        raise UsageError(
            f"--dist-timeout={text}: expected a number of seconds above 0, up to {MAX_TIMEOUT_S}.\n"
            "It is the limit of each case that sets no timeout.\n"
            f"Write --dist-timeout=60, for example; without it the limit is {spec.backend.timeout_s} s."
        )
    return value
