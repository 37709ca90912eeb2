"""The figures of `analysis.py`, without a Bazel."""

from __future__ import annotations

import math

import analysis
import pytest


def _turn(heap_added_mb: float) -> analysis.Turn:
    return analysis.Turn(duration_s=2.0, cpu_s=1.0, heap_added_mb=heap_added_mb, heap_mb=40.0, peak_mb=200.0)


@pytest.mark.parametrize("too_little_mb", [0.0, -1.0])
def test_heap_too_small_to_be_measured_has_no_ratio(too_little_mb: float) -> None:
    """Thirty targets may add less than the megabyte that Bazel counts in; the other figures are wanted all the same."""
    turns = {analysis.LIBRARY.name: [_turn(3.0)], analysis.PLAIN.name: [_turn(too_little_mb)]}
    found = analysis.ratios(turns)
    assert math.isnan(found["heap"])
    assert found["time"] == found["CPU"] == found["peak"] == 1.0
    assert "heap nan" in analysis.calls_table(10, turns)
    assert math.isnan(
        analysis.growth({10: {name: [_turn(too_little_mb)] for name in turns}, 20: turns})["py_test"]["heap"]
    )
