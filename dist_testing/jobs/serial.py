"""Reports and warnings of pytest as text for another process, and back."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import pytest

from dist_testing.jobs.messages import Warned


def report_text(config: pytest.Config, report: pytest.TestReport) -> str:
    """Return a report as text, by pytest's own hook. What JSON does not know becomes its `str`."""
    data = config.hook.pytest_report_to_serializable(config=config, report=report)
    return json.dumps(data, default=str)


def report_of(config: pytest.Config, text: str) -> pytest.TestReport:
    """Return the report of a text that `report_text` has made."""
    report: Any = config.hook.pytest_report_from_serializable(config=config, data=json.loads(text))
    # JSON has no tuples, and pytest's plugins expect them.
    report.location = tuple(report.location)
    report.user_properties = [(name, value) for name, value in report.user_properties]
    report.sections = [(name, content) for name, content in report.sections]
    if isinstance(report.longrepr, list):
        report.longrepr = tuple(report.longrepr)
    assert isinstance(report, pytest.TestReport)
    return report


def warned(item: int, message: warnings.WarningMessage, when: str, place: object) -> Warned:
    """Return the message about a warning that pytest has recorded."""
    category = message.category
    return Warned(
        item,
        f"{category.__module__}.{category.__qualname__}",
        str(message.message),
        message.filename,
        message.lineno,
        when,
        json.dumps(place, default=str),
    )


def warning_of(message: Warned) -> tuple[warnings.WarningMessage, tuple[str, int, str] | None]:
    """Return the warning of a message, and its place in the code."""
    module, _, name = message.category.rpartition(".")
    # A module that only the sub-runner has imported stays unknown here.
    found = getattr(sys.modules.get(module), name, None)
    category = found if isinstance(found, type) and issubclass(found, Warning) else UserWarning
    place = json.loads(message.place)
    recorded = warnings.WarningMessage(message.text, category, message.filename, message.line_number)
    return recorded, (str(place[0]), int(place[1]), str(place[2])) if place else None
