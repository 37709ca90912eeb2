"""The modules whose decisions `tests.support.mutate` changes, and the tests that must notice each change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_UNIT = "tests/unit/test_{}.py"


def _unit(*names: str) -> Sequence[str]:
    return tuple(_UNIT.format(name) for name in names)


def _process(*names: str) -> Sequence[str]:
    return tuple(f"tests/process/test_{name}.py" for name in names)


def _threaded(*names: str) -> Sequence[str]:
    return tuple(f"tests/threaded/test_{name}.py" for name in names)


# Area to its modules, without `dist_testing`, each with the files of its tests: modules that decide, with tests that
# take seconds.
AREAS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "runner": {
        "core.ground.budget": _unit("budget"),
        "hang.blame": _unit("hang_blame"),
        "hang.calls": (*_unit("call_compare"), *_process("call_differences", "strict_collectives")),
        "hang.call_rules": _unit("call_compare"),
        "core.engine.needs": _unit("needs"),
        "core.engine.rank_env": _unit("rank_env"),
        "core.engine.report_text": _unit("report_text"),
        "core.bazel.conclusion": _unit("conclusion", "bazel"),
    },
    "verdict": {
        "core.ground.outcomes": _unit("outcomes", "gpu_ranks"),
        "core.ground.skips": _unit("skips"),
        "core.rank.collateral": _unit("collateral"),
    },
    "launch": {
        "core.launch.isolation": _unit("isolation"),
        "core.launch.clean": _unit("clean"),
        "huge_pages": _unit("huge_pages"),
        "core.ground.layout": _unit("nodes"),
    },
    "threaded": {
        "threaded.arguments": _unit("thread_parts"),
        "threaded.turns": _unit("thread_parts"),
        "threaded.operation": (*_unit("thread_parts"), *_threaded("mismatches", "failures", "calls")),
        "threaded.data": _unit("thread_data"),
    },
    "frontends": {
        "core.pytest.marker": _unit("marker"),
        "compat.requirements.requirement": _unit("requirements"),
        "core.unittest.exits": _unit("exits"),
        "core.bazel.sharding": _unit("sharding"),
        "core.bazel.junit": ("tests/report/test_junit.py",),
        "report.result_xml": ("tests/report/test_junit.py", "tests/report/test_gather.py"),
        "core.bazel.timings": _unit("timings"),
    },
}
