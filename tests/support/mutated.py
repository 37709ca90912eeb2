"""The modules whose decisions `tests.support.mutate` changes, and the tests that must notice each change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def _tests(folder: str, *names: str) -> Sequence[str]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names)


# Each collective on threads, by every front end.
_VALUES_ON_THREADS = ("tests/test_multi_threaded_pg.py",)
# Of the tests of threads, which also start worlds.
_REFUSED = "test_ranks_that_the_backend_cannot_connect_are_refused"
# Area to its modules, without `dist_testing`, each with the files of its tests: modules that decide, with tests that
# take seconds.
AREAS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "runner": {
        "core.ground.budget": _tests("unit", "budget"),
        "hang.blame": _tests("unit", "hang_blame"),
        "hang.calls": (*_tests("unit", "call_compare"), *_tests("process", "call_differences", "strict_collectives")),
        "hang.call_rules": _tests("unit", "call_compare"),
        "core.engine.needs": _tests("unit", "needs"),
        "core.engine.rank_env": _tests("unit", "rank_env"),
        "core.engine.report_text": _tests("unit", "report_text"),
        "core.bazel.conclusion": _tests("unit", "conclusion", "bazel"),
    },
    "verdict": {
        "core.ground.outcomes": _tests("unit", "outcomes", "gpu_ranks"),
        "core.ground.skips": _tests("unit", "skips", "requirements"),
        "core.rank.collateral": _tests("unit", "collateral"),
    },
    "launch": {
        "core.launch.isolation": (*_tests("unit", "isolation"), f"tests/threaded/test_isolation.py::{_REFUSED}"),
        "core.launch.clean": _tests("unit", "clean"),
        "huge_pages": _tests("unit", "huge_pages"),
        "core.ground.layout": _tests("unit", "nodes"),
    },
    "threaded": {
        "threaded.arguments": (*_tests("unit", "thread_parts"), *_tests("threaded", "calls")),
        "threaded.turns": _tests("unit", "thread_parts"),
        "threaded.operation": (*_tests("unit", "thread_parts"), *_tests("threaded", "failures", "calls")),
        "threaded.data": (*_tests("unit", "thread_parts"), *_tests("threaded", "torch_features"), *_VALUES_ON_THREADS),
    },
    "frontends": {
        "core.pytest.marker": _tests("unit", "marker"),
        "compat.requirements.requirement": _tests("unit", "requirements"),
        "core.unittest.exits": _tests("unit", "exits"),
        "core.bazel.sharding": _tests("unit", "sharding"),
        "core.bazel.junit": _tests("report", "junit"),
        "report.result_xml": _tests("report", "junit", "gather"),
        "core.bazel.timings": _tests("unit", "timings"),
    },
}
