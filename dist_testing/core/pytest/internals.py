"""The private names of pytest that the library uses, in one place: a new version of pytest may move them.

pytest decides about a distributed test and reports it as if the test had run in the runner, but it runs on ranks.
pytest's public names are for plugins that leave the running to pytest. The library also needs:

- the mark `xfail` that pytest has chosen for an item (`Xfail`, `xfailed_key`);
- setup, call and teardown of a single item on a rank (`runtestprotocol`, `SetupState`, `runner_module`,
  `CaptureManager`);
- the streams that capture output during collection (`CaptureIO`, `EncodedFile`), and the format of times in log records
  (`DatetimeFormatter`);
- the parser of `-k` expressions (`parse_expression`), and of configuration files (`load_config_dict_from_file`).
"""

from __future__ import annotations

from _pytest import runner as runner_module
from _pytest.capture import CaptureIO, CaptureManager, EncodedFile
from _pytest.config.findpaths import load_config_dict_from_file
from _pytest.logging import DatetimeFormatter
from _pytest.mark import _parse_expression as parse_expression
from _pytest.runner import SetupState, runtestprotocol
from _pytest.skipping import Xfail, xfailed_key

__all__ = [
    "CaptureIO",
    "CaptureManager",
    "DatetimeFormatter",
    "EncodedFile",
    "SetupState",
    "Xfail",
    "load_config_dict_from_file",
    "parse_expression",
    "runner_module",
    "runtestprotocol",
    "xfailed_key",
]
