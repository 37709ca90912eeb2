"""The figures of `analysis.py`, without a Bazel."""

from __future__ import annotations

import math

import analysis
import pytest


def _turn(heap_added_mb: float) -> analysis.Turn:
    return analysis.Turn(duration_s=2.0, cpu_s=1.0, heap_added_mb=heap_added_mb)


@pytest.mark.parametrize("too_little_mb", [0.0, -1.0])
def test_heap_too_small_to_be_measured_has_no_ratio(too_little_mb: float) -> None:
    """Thirty targets may add less than one megabyte, Bazel's unit. The other figures must still be shown."""
    turns = {analysis.LIBRARY.name: [_turn(3.0)], analysis.PLAIN.name: [_turn(too_little_mb)]}
    found = analysis.ratios(turns)
    assert math.isnan(found["heap"])
    assert found["time"] == found["CPU"] == 1.0
    assert "heap nan" in analysis.turns_table(10, turns)


@pytest.mark.parametrize(
    ("cpu", "heap", "expected"),
    [
        (2.0, 1.5, []),
        (2.01, 1.2, ["CPU 2.01: not within 2"]),
        (1.2, 2.0, ["heap 2.00: not within 1.5"]),
        (1.2, math.nan, ["heap unknown, give more calls: not within 1.5"]),
    ],
)
def test_cpu_and_heap_have_limits(cpu: float, heap: float, expected: list[str]) -> None:
    """Without the limit, CI stays green when BUILD files become slow to load. An unknown ratio is not within it."""
    found = {"time": 9.0, "CPU": cpu, "heap": heap}
    assert analysis.excess(found, {"CPU": 2.0, "heap": 1.5}) == expected
    assert analysis.excess(found, {"CPU": None, "heap": None}) == []


def test_one_disturbed_turn_is_not_above_the_limit() -> None:
    """On a shared machine, every other change would fail."""
    turns = {analysis.LIBRARY.name: [_turn(3.0), _turn(30.0)], analysis.PLAIN.name: [_turn(3.0), _turn(3.0)]}
    assert analysis.ratios(turns)["heap"] == 5.5
    assert analysis.ratios(turns, of=analysis.least)["heap"] == 1.0


@pytest.mark.parametrize("wrong", ["0", "-1", "nan", "inf", "much"])
def test_limit_that_could_not_fail_is_refused(
    wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A CI job with a limit that is not a number would always be green."""
    monkeypatch.setattr("sys.argv", ["analysis.py", f"--max-heap={wrong}"])
    with pytest.raises(SystemExit) as ended:
        analysis.main()
    assert ended.value.code == 2
    assert wrong in capsys.readouterr().err
