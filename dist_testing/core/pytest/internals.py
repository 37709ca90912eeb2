"""The private names of pytest that the library uses, in one place: a new version of pytest may move them.

pytest decides about a distributed test and reports it as if the test had run in the runner, but it runs on ranks.
pytest's public names are for plugins that leave the running to pytest. The library also needs:

- the marks `skip`, `skipif` and `xfail`, judged before a rank is started (`evaluate_*`, `Xfail`, `xfailed_key`);
- a failure without a traceback in this process (`TerminalRepr`, `ReprFileLocation`, `TerminalWriter`);
- setup, call and teardown of a single item on a rank (`runtestprotocol`, `SetupState`, `runner_module`,
  `assertion_module`, `CaptureManager`), its errors (`FixtureLookupError`), and methods of unittest classes
  (`TestCaseFunction`);
- the streams that capture output during collection (`CaptureIO`, `EncodedFile`), and the format of times in log records
  (`DatetimeFormatter`);
- the base class of `pytest.fail`'s exception, to derive from (`Failed`);
- the parser of `-k` expressions (`parse_expression`), and the filters of warnings (`catch_warnings_for_item`).
"""

from __future__ import annotations

from _pytest import assertion as assertion_module
from _pytest import runner as runner_module
from _pytest._code.code import ReprEntry, ReprExceptionInfo, ReprFileLocation, ReprTraceback
from _pytest.capture import CaptureIO, CaptureManager, EncodedFile
from _pytest.config.findpaths import load_config_dict_from_file
from _pytest.fixtures import FixtureLookupError
from _pytest.logging import DatetimeFormatter
from _pytest.mark import _parse_expression as parse_expression
from _pytest.outcomes import Failed
from _pytest.runner import SetupState, runtestprotocol
from _pytest.skipping import Xfail, evaluate_skip_marks, xfailed_key
from _pytest.unittest import TestCaseFunction
from _pytest.warnings import catch_warnings_for_item

__all__ = [
    "CaptureIO",
    "CaptureManager",
    "DatetimeFormatter",
    "EncodedFile",
    "Failed",
    "FixtureLookupError",
    "ReprEntry",
    "ReprExceptionInfo",
    "ReprFileLocation",
    "ReprTraceback",
    "SetupState",
    "TestCaseFunction",
    "Xfail",
    "assertion_module",
    "catch_warnings_for_item",
    "evaluate_skip_marks",
    "load_config_dict_from_file",
    "parse_expression",
    "runner_module",
    "runtestprotocol",
    "xfailed_key",
]
