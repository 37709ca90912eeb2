"""`python -m dist_testing.conformance`, single cells by pytest, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch.distributed as dist

from dist_testing.conformance.__main__ import main
from dist_testing.conformance.matrix import Matrix

# A backend of another project: torch's own gloo under another name, whose broadcast can forget the root.
PLUG_IN = """
import os
import torch.distributed as dist

def create(store, rank, size, timeout):
    return dist.ProcessGroupGloo(store, rank, size, timeout)

dist.Backend.register_backend("foreign", create, devices=["cpu"])
dist.Backend.register_backend("nowhere", create, devices=[])
"""


def run(*arguments: str, folder: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run `python -m` with these arguments, in a folder that Python finds modules in."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TEST_", "RUNFILES_", "XML_"))}
    kept["PYTHONPATH"] = os.pathsep.join([str(folder), *(path or os.getcwd() for path in sys.path)])
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
        cwd=folder,
        env={**kept, **(env or {})},
    )


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
    done = run(
        "dist_testing.conformance",
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
    done = run(
        "dist_testing.conformance",
        "--backend=foreign",
        "--import=foreign_plug_in",
        "--cells=scatter/*/strided/odd/*",
        "--cells=barrier/waits_for_all/w2",
        "--cells=debug_wrapper/other_*/w2",
        "--world-sizes=2",
        "--cell-limit=60",
        "--out=out",
        folder=tmp_path,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    cells = json.loads((tmp_path / "out" / "matrix.json").read_text(encoding="utf-8"))["cells"]
    assert cells["barrier/waits_for_all/w2"]["status"] == "works"
    # torch puts its debug wrapper around the group of a plug-in, too.
    wrapped = {name: entry["status"] for name, entry in cells.items() if name.startswith("debug_wrapper/")}
    differences = ("dimensions", "dtype", "operation", "shape")
    assert wrapped == {f"debug_wrapper/other_{what}/w2": "works" for what in differences}
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
        # Before a cell runs: a whole run takes minutes.
        (["--backend=glo", "--out=foreign_plug_in.py"], "the matrix cannot be written: File exists"),
        (["--backend=glo", "--compare=before.json"], "--compare=before.json without --out"),
    ],
)
def test_bad_command_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    """Three lines, status 2."""
    (tmp_path / "foreign_plug_in.py").write_text(PLUG_IN, encoding="utf-8")
    (tmp_path / "before.json").write_text(Matrix("gloo", "2.13").to_json(), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert text in told
    assert len(told.strip().splitlines()) == 3


def test_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """If this fails, who stops a run of minutes gets forty lines of a traceback."""
    (tmp_path / "stopped_plug_in.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["--backend=mine", "--import=stopped_plug_in"]) == 130
    assert capsys.readouterr().err == "The run was stopped: Ctrl-C.\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--list", "--cells=barrier/*", "--world-sizes=2"], "barrier/waits_for_all/w2\n"),
        (["--contract"], "| 7.6 | `scatter`"),
    ],
)
def test_what_needs_no_backend(capsys: pytest.CaptureFixture[str], arguments: list[str], text: str) -> None:
    """--list prints names that --cells takes; --contract a row for each number that a matrix names."""
    assert main(arguments) == 0
    assert text in capsys.readouterr().out


def test_a_backend_that_is_not_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing runs, and the matrix claims nothing; its file says the same, and holds no row."""
    if dist.is_mpi_available():
        pytest.skip("this torch has MPI")
    file = tmp_path / "conformance.json"
    file.write_text('{"schema": 1, "backend": "mpi", "not_run": "torch was built without it", "rows": []}')
    arguments = ["--backend=mpi", "--cells=barrier/*", f"--expectations={file}", f"--out={tmp_path / 'out'}"]
    assert main(arguments) == 0
    assert "No cell has run, so nothing is known" in capsys.readouterr().out
    content = json.loads((tmp_path / "out" / "matrix.json").read_text(encoding="utf-8"))
    assert set(content["counts"]) == {"not run"}
    assert all(entry["reason"] == "torch was built without it" for entry in content["cells"].values())
    for name in ("matrix.md", "matrix.html"):
        assert "No cell has run" in (tmp_path / "out" / name).read_text(encoding="utf-8")


def test_a_single_cell_by_pytest(tmp_path: Path) -> None:
    """A node id runs one cell, for debugging; a deviation fails with the text of the kit."""
    from dist_testing.conformance import cells_test

    nodes = [
        f"{cells_test.__file__}::test_cell[{name}]"
        for name in ("barrier/waits_for_all/w2", "reduce_scatter_tensor/handle_completes/w2")
    ]
    options = ["-p", "dist_testing.core.pytest.plugin", "-p", "no:cacheprovider", "--import-mode=importlib"]
    options += ["--dist-backend=gloo", "-q", f"--rootdir={tmp_path}"]
    done = run("pytest", *options, *nodes, folder=tmp_path, env={"CONFORMANCE_CELL_LIMIT": "60"})
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "is not completed after wait()" in done.stdout
