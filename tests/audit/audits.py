"""Runs the audit as a user does, over the models of harnesses in `harnesses`."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dist_testing.audit.__main__ import main

HERE = Path(__file__).parent
HARNESSES = HERE / "harnesses"


@dataclass(frozen=True)
class Audited:
    """An audit that has ended."""

    exit_status: int
    output: str  # what it wrote
    found: dict[str, Any]  # its JSON; empty if it wrote none

    def case(self, name: str) -> dict[str, Any]:
        """Return the case whose id ends with a name."""
        (case,) = [case for case in self.found["cases"] if case["id"].endswith(name)]
        return dict(case)

    def fault(self, case: str, fault: str) -> dict[str, Any]:
        """Return one fault of a case."""
        (one,) = [one for one in self.case(case)["faults"] if one["fault"] == fault]
        return dict(one)

    def holes(self, case: str) -> dict[str, list[str]]:
        """Return the holes of a case by fault."""
        return {one["fault"]: one["holes"] for one in self.case(case)["faults"] if one["holes"]}


def suite(*words: object) -> list[str]:
    """Return the command that runs files of models by pytest."""
    options = ["-q", "-c", os.devnull, f"--rootdir={HARNESSES}", "-p", "no:cacheprovider"]
    return [sys.executable, "-m", "pytest", *options, *map(str, words)]


def environment(*, with_torch: bool = False) -> dict[str, str]:
    """Return the variables of audits: with the stand-in of torch, or with torch itself."""
    # The models come first; then this checkout, or what Bazel provides.
    first = [str(HARNESSES)] if with_torch else [str(HERE / "stand_in"), str(HARNESSES)]
    path = os.pathsep.join([*first, str(HERE.parents[1]), *filter(None, sys.path)])
    return {"PYTHONPATH": path, "MODEL_PATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def audit(folder: Path, options: Sequence[str], command: Sequence[str], *, with_torch: bool = False) -> Audited:
    """Audit a test command in this process, because each start of the audit imports this library.

    `folder` is for its files. `with_torch`: whether the models run with torch itself.
    """
    json_file = folder / "audit.json"
    own = [f"--json={json_file}", f"--logs={folder / 'logs'}", *options]
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(output):
        for name, value in environment(with_torch=with_torch).items():
            patch.setenv(name, value)
        exit_status = main([*own, "--", *command])
    found = json.loads(json_file.read_text(encoding="utf-8")) if json_file.exists() else {}
    return Audited(exit_status, output.getvalue(), found)
