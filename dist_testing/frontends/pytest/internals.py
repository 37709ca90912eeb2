"""What pytest has no public name for, in one place: all that a new version of pytest may move.

A distributed test runs on ranks, and pytest decides about it and reports it as if it had run here. Its public names are
for plugins that leave the running to pytest; these parts of that it offers to nobody:

- the marks `skip`, `skipif` and `xfail`, judged before a rank is started (`evaluate_*`, `Xfail`);
- a failure that is no traceback of this process (`TerminalRepr`, `ReprFileLocation`, `TerminalWriter`);
- setup, call and teardown of an item alone, on a rank (`runtestprotocol`, `SetupState`, `runner_module`,
  `assertion_module`, `CaptureManager`), what went wrong there (`FixtureLookupError`), and methods of unittest classes
  (`TestCaseFunction`);
- what takes the output while tests are collected (`CaptureIO`, `EncodedFile`), and the form of times in log records
  (`DatetimeFormatter`);
- the class of what `pytest.fail` raises, to derive from (`Failed`);
- expressions as `-k` takes them (`parse_expression`), and filters of warnings as the mark writes them
  (`parse_warning_filter`);
- a configuration file, read to see whether it holds anything for pytest (`load_config_dict_from_file`).
"""

from __future__ import annotations

from _pytest import assertion as assertion_module
from _pytest import runner as runner_module
from _pytest._code.code import ReprFileLocation, TerminalRepr
from _pytest._io import TerminalWriter
from _pytest.capture import CaptureIO, CaptureManager, EncodedFile
from _pytest.config import parse_warning_filter
from _pytest.config.findpaths import load_config_dict_from_file
from _pytest.fixtures import FixtureLookupError
from _pytest.logging import DatetimeFormatter
from _pytest.mark import _parse_expression as parse_expression
from _pytest.outcomes import Failed
from _pytest.runner import SetupState, runtestprotocol
from _pytest.skipping import Xfail, evaluate_skip_marks, evaluate_xfail_marks
from _pytest.unittest import TestCaseFunction

__all__ = [
    "CaptureIO",
    "CaptureManager",
    "DatetimeFormatter",
    "EncodedFile",
    "Failed",
    "FixtureLookupError",
    "ReprFileLocation",
    "SetupState",
    "TerminalRepr",
    "TerminalWriter",
    "TestCaseFunction",
    "Xfail",
    "assertion_module",
    "evaluate_skip_marks",
    "evaluate_xfail_marks",
    "load_config_dict_from_file",
    "parse_expression",
    "parse_warning_filter",
    "runner_module",
    "runtestprotocol",
]
