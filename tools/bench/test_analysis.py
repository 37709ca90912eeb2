"""The figures of `analysis.py`, without a Bazel."""

from __future__ import annotations

import analysis
import pytest
from analysis import LIBRARY, PLAIN, Turn


def test_one_disturbed_turn_is_not_above_the_limit() -> None:
    """On a shared machine, every other change would fail."""
    turns = {LIBRARY: [Turn(2.0, 1.0, 3.0), Turn(2.0, 1.0, 30.0)], PLAIN: [Turn(2.0, 1.0, 3.0)] * 2}
    assert "time 1.00, CPU 1.00, heap 5.50" in analysis.turns_table(10, turns)
    assert analysis.ratios(turns, min).heap == 1.0


@pytest.mark.parametrize("too_little_mb", [0.0, -1.0])
@pytest.mark.parametrize(("cpu", "expected"), [(2.0, []), (2.01, ["CPU 2.01: not within 2"])], ids=["within", "above"])
def test_cpu_and_heap_have_limits(too_little_mb: float, cpu: float, expected: list[str]) -> None:
    """Without the limit, CI stays green when BUILD files become slow to load. An unknown ratio is not within it."""
    turns = {LIBRARY: [Turn(2.0, cpu, 3.0)], PLAIN: [Turn(2.0, 1.0, too_little_mb)]}
    assert "heap nan" in analysis.turns_table(10, turns)
    found = analysis.ratios(turns, min)
    assert analysis.excess(found, cpu=2.0, heap=None) == expected
    assert analysis.excess(found, cpu=None, heap=1.5) == ["heap unknown, give more calls: not within 1.5"]
    assert analysis.excess(found._replace(heap=2.0), cpu=None, heap=1.5) == ["heap 2.00: not within 1.5"]
    assert analysis.excess(found._replace(heap=1.5), cpu=None, heap=1.5) == []


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
