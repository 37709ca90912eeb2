"""Cells of what gloo cannot do, or torch does not let it do, on plug-ins that can."""

from __future__ import annotations

import pytest
import torch

from dist_testing.conformance.catalogue import cells_by_name
from dist_testing.conformance.kit_session import CellSession
from dist_testing.core.ground.backends import Backend

CELLS = {
    "splitting": ("split_group/refusals/w2", "split_group/parts/w4"),
    "shrinking": ("shrink_group/refusals/w2", "shrink_group/default_group/w3", "shrink_group/part/w3"),
}
# The plug-in splits by gloo.
_HANGS = pytest.mark.skipif(
    tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 15),
    reason="since torch 2.15 about every third split of gloo never returns on a rank (docs/evidence/deviations.md)",
)
_PLUG_INS = [pytest.param("splitting", marks=_HANGS), "shrinking"]


def _ends(name: str, mutant: str) -> dict[str, str]:
    """Return how the cells end on a plug-in: name to status and detail."""
    module = "tests.conformance.able_groups"
    backend = Backend(name, name, "cpu", register_module=module, env={"KIT_MUTANT": mutant})
    with CellSession(backend, preloads=False, limit_s=10) as session:
        results = [session.run(cells_by_name()[cell]) for cell in CELLS[name]]
    return {result.cell.name: f"{result.status} {result.detail}".strip() for result in results}


@pytest.mark.parametrize("name", _PLUG_INS)
def test_a_plug_in_that_can_passes(name: str) -> None:
    """If this fails, a right backend gets an alarm, or its groups were never used."""
    assert _ends(name, "") == dict.fromkeys(CELLS[name], "works")


@pytest.mark.parametrize("name", _PLUG_INS)
def test_parts_with_ranks_in_the_wrong_order_are_found(name: str) -> None:
    """If this fails, the cells pass where the backend only says that it can."""
    wrong = [cell for cell, end in _ends(name, "order").items() if end != "works"]
    assert wrong == [cell for cell in CELLS[name] if "refusals" not in cell]
