"""The numbers that the cases of a report have recorded (docs/numbers.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from dist_testing.core.ground.codec import WrongValueError, shape_of
from dist_testing.numbers.number import PROPERTY, Summary
from dist_testing.report.facts import final_runs
from dist_testing.report.model import Report


@dataclass(frozen=True, slots=True)
class RecordedNumber:
    """A number of a case, in all ranks that recorded it."""

    target: str
    case: str
    name: str
    summary: Summary

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What makes it comparable with one of another report."""
        return self.target, self.case, self.name, self.summary.unit

    @property
    def median_text(self) -> str:
        """The median of the ranks, with its unit."""
        return f"{self.summary.median:g} {self.summary.unit}".rstrip()


def numbers_of(report: Report) -> Iterator[RecordedNumber]:
    """Yield all numbers; of a repeated case those of the last attempt."""
    for run in final_runs(report):
        for case in run.cases:
            for name, value in case.properties:
                if name.startswith(PROPERTY):
                    try:
                        summary: Summary = shape_of(Summary).read(json.loads(str(value)))
                    except (WrongValueError, ValueError, RecursionError):
                        # Any program may have written the file.
                        continue
                    yield RecordedNumber(run.target, case.name, name.removeprefix(PROPERTY), summary)
