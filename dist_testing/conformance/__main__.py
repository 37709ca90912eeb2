"""Runs the conformance kit from the command line: `python -m dist_testing.conformance --backend=gloo`.

Exit status: 0 if every cell ended as expected; 1 if a cell did not; 2 if the command line is wrong; 130 if the run was
interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dist_testing.backend_files import read_backend_file
from dist_testing.conformance.catalogue import all_cells, chosen_cells
from dist_testing.conformance.cell import Status
from dist_testing.conformance.expectations import CONTRACT, Expectations, read_expectations
from dist_testing.conformance.kit_session import CELL_LIMIT_S, CellSession, cell_limit
from dist_testing.conformance.matrix import check_folder, feature_problems, read_matrix, write_matrix
from dist_testing.core.ground.add_ons import add_on_named
from dist_testing.core.ground.backends import Backend, add_backends, backend_named, backends
from dist_testing.core.ground.errors import DistTestingError, UsageError
from dist_testing.core.ground.spec import Spec
from dist_testing.core.launch.isolation import FORK

# The option, as errors name it.
_SHARING = "--ranks-per-gpu"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the kit with these arguments, by default with those of the process, and return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except KeyboardInterrupt as error:
        # Of SIGTERM it has a text.
        print(f"The run was stopped: {str(error) or 'Ctrl-C'}.", file=sys.stderr)
        return 130
    except DistTestingError as error:
        print(error, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dist_testing.conformance",
        description="Check what torch.distributed promises on a backend, and write its capability matrix.",
    )
    parser.add_argument("--backend", help="name of the backend: a declared one, or torch's name of a plug-in")
    parser.add_argument("--import", dest="module", metavar="MODULE", help="module whose import registers the backend")
    parser.add_argument("--declared-in", metavar="FILE", help="the .bzl file that declares the backend")
    parser.add_argument("--device", metavar="TYPE", help="type of the tensors' device (default: the backend's first)")
    parser.add_argument(
        "--cells", action="append", metavar="PATTERN", help="cells to run, such as 'broadcast/*' (repeat)"
    )
    parser.add_argument("--world-sizes", metavar="N[,N...]", help="world sizes to run (default: 1,2,3,4,5,7)")
    parser.add_argument("--expectations", metavar="FILE", help="expectation file of the backend")
    parser.add_argument("--out", metavar="DIR", help="folder for matrix.json, matrix.md, matrix.html and crcr.json")
    parser.add_argument(
        "--cell-limit",
        metavar="SECONDS",
        help=f"limit of one cell (default: {CELL_LIMIT_S:.0f}); raise it on a busy machine",
    )
    parser.add_argument(_SHARING, metavar="N", help="ranks that share a GPU (default: 1)")
    parser.add_argument("--list", action="store_true", help="print the names of the chosen cells, and run none")
    parser.add_argument("--contract", action="store_true", help="print the rows of the contract, and run no cell")
    parser.add_argument("--compare", metavar="FILE", help="matrix.json to compare with, in matrix.html")
    parser.add_argument("--merge", nargs="+", metavar="FILE", help="make one matrix of these, such as those of shards")
    return parser


def _run(options: argparse.Namespace) -> int:
    if options.contract:
        print(CONTRACT, end="")
        return 0
    before = read_matrix(options.compare) if options.compare else None
    if options.merge:
        merged = read_matrix(options.merge[0])
        for file in options.merge[1:]:
            merged.merge(read_matrix(file))
        write_matrix(merged, Path(options.out or "."), before)
        return 0
    cells = chosen_cells(all_cells(), options.cells or [], options.world_sizes)
    if options.list:
        print("\n".join(cell.name for cell in cells))
        return 0
    if options.out:
        check_folder(Path(options.out))
    elif before is not None:
        raise UsageError(
            f"--compare={options.compare} without --out.\n"
            "The difference stands in the page of the run, matrix.html.\n"
            "Add --out=matrix, for example."
        )
    backend = _backend(options)
    expectations = Expectations()
    if options.expectations:
        expectations = read_expectations(options.expectations, backend.name)
        expectations.check_cells(all_cells())
    problems = []
    started_s = time.monotonic()
    preloads = any(cell.is_functional for cell in cells)
    limit_s = cell_limit("--cell-limit", options.cell_limit)
    with CellSession(
        backend,
        expectations=expectations,
        preloads=preloads,
        limit_s=limit_s,
        settings=_settings(backend, options.ranks_per_gpu),
    ) as session:
        matrix = session.matrix
        try:
            for cell in cells:
                if problem := session.checked(cell)[1]:
                    problems.append(problem)
                    print(f"FAILED {problem}\n", flush=True)
        finally:
            # Also after Ctrl-C: what is known stays known.
            if options.out:
                write_matrix(matrix, Path(options.out), before)
        lack = session.missing_need(cells[0].world_size)
    # A backend without a declaration has no features that could be untrue.
    notes = [*([] if options.module else feature_problems(matrix, backend)), expectations.run_problem(lack)]
    for note in filter(None, notes):
        problems.append(note)
        print(f"FAILED {note}\n")
    seconds = time.monotonic() - started_s
    print(f"{len(matrix.cells)} cells of {backend.name} in {seconds:.1f} s: {matrix.counts_text()}.")
    print(f"{len(matrix.deviations())} deviate from the contract; {len(problems)} end otherwise than expected.")
    if remark := matrix.remark():
        print(remark)
    elif not_run := next((cell for cell in matrix.cells.values() if cell.status is Status.NOT_RUN), None):
        print(f"Not run: {not_run.detail}")
    return 1 if problems else 0


def _settings(backend: Backend, ranks_per_gpu: str | None) -> dict[str, Any]:
    """Return the setting of the add-on for GPUs, which says how many ranks share one."""
    if ranks_per_gpu is None:
        return {}
    spec = Spec("", backend, (1,), FORK.name)
    return {"gpus": add_on_named("gpus", _SHARING).load("from_options")(spec, {_SHARING: ranks_per_gpu})}


def _backend(options: argparse.Namespace) -> Backend:
    if not options.backend:
        raise UsageError(
            "--backend is missing.\n"
            "The kit tests one backend at a time.\n"
            f"Name one of {', '.join(sorted(backends()))}, or a plug-in with --import=MODULE."
        )
    if options.declared_in:
        add_backends((backend, options.declared_in) for backend in read_backend_file(options.declared_in))
    if options.module:
        return _plug_in(options.backend, options.module, options.device)
    backend = backend_named(options.backend)
    return dataclasses.replace(backend, device=options.device) if options.device else backend


def _plug_in(name: str, module: str, device: str | None) -> Backend:
    """Return a declaration of the backend that a module registers, by default for the first device that it names."""
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())
        raise UsageError(
            f"--import={module}: the module cannot be imported: {type(error).__name__}: {text}\n"
            "Its import must register the backend with torch.\n"
            f"Correct PYTHONPATH or the module; `python -c 'import {module}'` shows the whole error."
        ) from error
    import torch.distributed as dist

    devices = dist.Backend.backend_capability.get(name.lower())
    if devices is None:
        raise UsageError(
            f"--backend={name}: the import of {module} does not register this name.\n"
            "A plug-in calls torch.distributed.Backend.register_backend(name, creator, devices=[...]).\n"
            "Name the backend that it registers, or another module."
        )
    if not devices:
        raise UsageError(
            f"--backend={name}: {module} registers no device for it.\n"
            "A group finds the backend of a tensor by the tensor's device.\n"
            'Register it with devices=["cpu"], for example.'
        )
    return Backend(name.lower(), name.lower(), device or devices[0], register_module=module)


if __name__ == "__main__":
    sys.exit(main())
