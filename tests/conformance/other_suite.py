"""Counts how many of the planted bugs a file of torch's own tests finds, to compare its score with the kit's.

    python -m tests.conformance.other_suite test_c10d_backend_collectives.py

The file's classes and assertions stay as they are. Only the group is another one: the ranks are threads, and the
default group exists before a test method begins, because the bugs are planted in that group. Test methods that differ
only in the name of a backend run once.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase

import tests.conformance.mutants  # noqa: F401  # plants the bug
from tests.conformance.mutant_tools import PLANTS

_VARIABLE = "KIT_OTHER_SUITE"
_LIMIT_S = 600
# In names of parametrised methods.
_BACKEND = re.compile(r"_backend_[a-z0-9]+")
_OK, _TESTS_FAILED = 0, 1


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("other_suite_file", os.environ[_VARIABLE])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _methods() -> dict[str, tuple[Any, str]]:
    """One method per name without the backend, with its class."""
    if _VARIABLE not in os.environ:
        return {}
    found: dict[str, tuple[Any, str]] = {}
    for cls in vars(_load()).values():
        if isinstance(cls, type) and issubclass(cls, MultiProcessTestCase) and cls is not MultiProcessTestCase:
            cls._init_process_group = lambda *_: torch.device("cpu")  # type: ignore[attr-defined]
            for name in unittest.defaultTestLoader.getTestCaseNames(cls):
                found.setdefault(f"{cls.__name__}.{_BACKEND.sub('', name)}", (cls, name))
    return found


_METHODS = _methods()


@pytest.mark.parametrize("name", _METHODS)
@pytest.mark.distributed(world_size=2, isolation="thread", timeout=6)
def test_method(name: str) -> None:
    """Run one method of the file on the ranks."""
    cls, method = _METHODS[name]
    test = cls(method)
    test.rank = dist.get_rank()
    getattr(test, method)()


def _ended(number: int, path: Path) -> int:
    """Return pytest's exit code for a run with one bug; 0 for none."""
    options = "-q --dist-backend=threaded -W default -p dist_testing.core.pytest.plugin -p no:cacheprovider"
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options.split(), __file__],
        env=os.environ | {"KIT_MUTANT": str(number), _VARIABLE: str(path)},
        stdout=subprocess.DEVNULL,
        timeout=_LIMIT_S,
        check=False,
    ).returncode


def main() -> int:
    """Run the file once without a bug, and once with each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the file of tests")
    path = parser.parse_args().file.resolve()
    if not path.is_file():
        parser.error(f"{path} is no file")
    if (code := _ended(0, path)) != _OK:
        print(f"{path}: pytest ends with {code} without a bug, so its score would say nothing.", file=sys.stderr)
        return 1
    codes = {number: _ended(number, path) for number in sorted(PLANTS)}
    found = [number for number, code in codes.items() if code == _TESTS_FAILED]
    print(f"found {len(found)} of {len(codes)}: {', '.join(map(str, found))}")
    if others := {number: code for number, code in codes.items() if code not in {_OK, _TESTS_FAILED}}:
        print(f"not judged, with pytest's exit codes: {others}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
