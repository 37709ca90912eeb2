"""Runs the audit as a user does, over the models of harnesses in `harnesses`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HARNESSES = HERE / "harnesses"
_LIMIT_S = 900


@dataclass(frozen=True)
class Audited:
    """An audit that has ended.

    Attributes:
        exit_status: Its exit status.
        output: What it wrote.
        found: Its JSON; empty if it wrote none.
    """

    exit_status: int
    output: str
    found: dict[str, Any]

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
    """Return an environment for audits: with the stand-in of torch, or with torch itself."""
    # The models come first; then this checkout, or what Bazel provides.
    first = [str(HARNESSES)] if with_torch else [str(HERE / "stand_in"), str(HARNESSES)]
    path = os.pathsep.join([*first, str(HERE.parents[1]), *filter(None, sys.path)])
    own = {"PYTHONPATH": path, "MODEL_PATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return {**os.environ, **own}


def audit(folder: Path, options: Sequence[str], command: Sequence[str], *, with_torch: bool = False) -> Audited:
    """Run an audit.

    Args:
        folder: Folder for its files.
        options: Options of the audit.
        command: The test command.
        with_torch: Whether the models run with torch itself.
    """
    json_file = folder / "audit.json"
    own = [f"--json={json_file}", f"--logs={folder / 'logs'}", *options]
    return finished(
        [sys.executable, "-m", "dist_testing.audit", *own, "--", *command], json_file, with_torch=with_torch
    )


def finished(command: Sequence[str], json_file: Path, *, with_torch: bool = False) -> Audited:
    """Run a command that audits, and return what it found."""
    done = subprocess.run(
        command,
        env=environment(with_torch=with_torch),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    found = json.loads(json_file.read_text(encoding="utf-8")) if json_file.exists() else {}
    return Audited(done.returncode, done.stdout, found)
