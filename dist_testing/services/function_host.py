"""Runs the function of a service in a fresh interpreter, as its main process."""

from __future__ import annotations

import importlib
import importlib.util
import json
import operator
import sys

# Given after the descriptor of the order, with the placeholders of the port replaced by numbers.
ARGUMENTS = ("port={port}", "fd={fd}")


def main(text: str) -> None:
    """Call the function."""
    given = json.loads(text)
    try:
        module = importlib.import_module(given["module"])
    except ModuleNotFoundError as error:
        if not f"{given['module']}.".startswith(f"{error.name}."):
            raise
        module = None
    # pytest can import files that no path leads to, or several with one name, as conftest.py; and the main module of a
    # program has another name.
    if module is None or given["file"] not in (None, module.__file__):
        spec = importlib.util.spec_from_file_location(given["module"], given["file"])
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[given["module"]] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    numbers = dict(argument.split("=") for argument in sys.argv[2:])
    function = operator.attrgetter(given["name"])(module)
    function(**{name: int(numbers[name]) for name in given["takes"]})
