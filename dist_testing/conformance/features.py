"""Compares the declared features of a backend with what its cells did."""

from __future__ import annotations

from dist_testing.conformance.cell import Status, matches
from dist_testing.conformance.matrix import Matrix
from dist_testing.core.ground.backends import Backend

# Feature to the cells that show it. Every feature of a declaration has an entry here or in `WITHOUT_CELLS`.
FEATURE_CELLS = {
    "coalesced_all_reduce": "_coalescing_manager/all_reduce_*/w2",
    "coalescing": "_coalescing_manager/with_device/w2",
    "cpu_tensors": "all_gather/handle_completes/w2",
    "monitored_barrier": "monitored_barrier/*/w[23]",
    "moves_data": "all_gather/outputs_are_views_of_one_tensor/w2",
    "recv_any_source": "recv/from_anybody/w2",
    "uneven_gather": "all_gather/uneven/w[23]",
}
# Feature to the reason why no cell can show it.
WITHOUT_CELLS = {"needs_no_gloo": "a cell sees one build of torch, and the feature is about builds without gloo"}


def feature_problems(matrix: Matrix, backend: Backend) -> list[str]:
    """Return what is wrong with the declared features, each in three parts.

    A feature whose cells did not run is neither right nor wrong.

    Args:
        matrix: The results.
        backend: The declaration.
    """
    problems = []
    for feature, pattern in FEATURE_CELLS.items():
        statuses = {
            name: cell.status
            for name, cell in matrix.cells.items()
            if matches(name, [pattern]) and cell.status is not Status.NOT_RUN
        }
        # The cells move CPU tensors only where the backend's device is the CPU.
        if not statuses or (feature == "cpu_tensors" and backend.device != "cpu"):
            continue
        failed = sorted(name for name, status in statuses.items() if status is not Status.WORKS)
        if feature in backend.features and failed:
            problems.append(
                f"Backend {backend.name} declares the feature {feature}, but {failed[0]} {statuses[failed[0]].value}.\n"
                "Tests that ask for the feature would fail on this backend.\n"
                "Correct the backend, or drop the feature from its declaration."
            )
        if feature not in backend.features and not failed:
            problems.append(
                f"Backend {backend.name} does not declare the feature {feature}, but its cells work.\n"
                "Tests that ask for the feature leave this backend out.\n"
                "Add the feature to its declaration."
            )
    return problems
