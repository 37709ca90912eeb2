"""`python -m dist_testing.conformance`, single cells by pytest, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# A backend of another project: torch's own gloo under another name, whose broadcast can forget the root.
PLUG_IN = """
import os
import torch.distributed as dist

def create(store, rank, size, timeout):
    return dist.ProcessGroupGloo(store, rank, size, timeout)

dist.Backend.register_backend("foreign", create, devices=["cpu"])
dist.Backend.register_backend("nowhere", create, devices=[])
"""


def conformance(*arguments: str, folder: Path, limit_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Run the command line in a folder that Python finds modules in."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TEST_", "RUNFILES_", "XML_"))}
    env["PYTHONPATH"] = os.pathsep.join([str(folder), *(path or os.getcwd() for path in sys.path)])
    command = [sys.executable, "-m", "dist_testing.conformance", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s, cwd=folder, env=env)


def test_a_cell_from_the_command_line_to_the_matrix(tmp_path: Path) -> None:
    """One operation, one oracle, one expectation file, one matrix."""
    row = {
        "cells": ["broadcast/*/strided/odd/*"],
        "except": ["*/w1", "*/single/*"],
        "status": "wrong",
        "reason": "gloo ignores the strides",
        "link": "pytorch#192920",
        "until": "2999-01-01",
    }
    file = tmp_path / "conformance.json"
    file.write_text(json.dumps({"schema": 1, "backend": "gloo", "rows": [row]}), encoding="utf-8")
    done = conformance(
        "--backend=gloo",
        "--cells=broadcast/*/odd/*",
        "--world-sizes=2",
        f"--expectations={file}",
        "--out=out",
        "--cell-limit=60",
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cells = json.loads((tmp_path / "out" / "matrix.json").read_text(encoding="utf-8"))["cells"]
    assert {entry["status"] for entry in cells.values()} == {"works", "wrong"}
    assert all(entry["as_expected"] for entry in cells.values())


def test_a_foreign_backend(tmp_path: Path) -> None:
    """A plug-in of a consumer's needs no declaration; an undeclared deviation ends with status 1."""
    (tmp_path / "foreign_plug_in.py").write_text(PLUG_IN, encoding="utf-8")
    done = conformance(
        "--backend=foreign",
        "--import=foreign_plug_in",
        "--cells=scatter/*/strided/odd/*",
        "--cells=barrier/waits_for_all/w2",
        "--world-sizes=2",
        "--cell-limit=60",
        "--out=out",
        folder=tmp_path,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    cells = json.loads((tmp_path / "out" / "matrix.json").read_text(encoding="utf-8"))["cells"]
    assert cells["barrier/waits_for_all/w2"]["status"] == "works"
    assert "wrong" in {entry["status"] for entry in cells.values()}
    assert "declare the deviation" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--backend=gloo", "--cells=no_such/*"], "no cell has such a name"),
        (["--backend=gloo", "--world-sizes=6"], "expected some of 1, 2, 3"),
        (["--backend=gloo", "--cells=*/w3", "--world-sizes=2"], "no cell fits both"),
        (["--backend=gloo", "--cell-limit=soon"], "expected a number of seconds"),
        (["--backend=glo"], "Did you mean 'gloo'"),
        ([], "--backend is missing"),
        (["--backend=foreign", "--import=no_such_module"], "cannot be imported"),
        (["--backend=other", "--import=foreign_plug_in"], "does not register this name"),
        (["--backend=nowhere", "--import=foreign_plug_in"], "registers no device"),
        (["--backend=gloo", "--expectations=absent.json"], "cannot be read"),
        (["--merge", "absent.json"], "no capability matrix"),
    ],
)
def test_bad_command_lines(tmp_path: Path, arguments: list[str], text: str) -> None:
    """Three lines, status 2, no traceback."""
    (tmp_path / "foreign_plug_in.py").write_text(PLUG_IN, encoding="utf-8")
    done = conformance(*arguments, folder=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 3


def test_the_list_needs_no_backend(tmp_path: Path) -> None:
    """--list prints names that --cells takes."""
    done = conformance("--list", "--cells=barrier/*", "--world-sizes=2", folder=tmp_path)
    assert done.returncode == 0
    assert "barrier/waits_for_all/w2" in done.stdout.split()


def test_a_single_cell_by_pytest(tmp_path: Path) -> None:
    """A node id runs one cell, for debugging; a deviation fails with the text of the kit."""
    from dist_testing.conformance import cells_test

    env = {name: value for name, value in os.environ.items() if not name.startswith(("TEST_", "RUNFILES_", "XML_"))}
    env |= {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path), "CONFORMANCE_CELL_LIMIT": "60"}
    nodes = [
        f"{cells_test.__file__}::test_cell[{name}]"
        for name in ("barrier/waits_for_all/w2", "reduce_scatter_tensor/handle_completes/w2")
    ]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "dist_testing.frontends.pytest.plugin",
            "-p",
            "no:cacheprovider",
            "--import-mode=importlib",
            "--dist-backend=gloo",
            "-q",
            f"--rootdir={tmp_path}",
            *nodes,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
        env=env,
        cwd=tmp_path,
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "is not completed after wait()" in done.stdout
