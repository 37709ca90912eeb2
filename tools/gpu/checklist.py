"""Runs the checks that need a GPU, and prints their output. Needs pytest, psutil and a torch with CUDA.

    python tools/gpu/checklist.py [--only STEP,...]

It does not use Bazel. Each step is a command that can be repeated by hand; it is printed before its output. The exit
code is 1 if a step did not end as expected, and also without a GPU, because no check has run then.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
# The program runs in a clone, without an installed library.
sys.path.insert(0, str(_ROOT))

from dist_testing.core.ground.errors import DistTestingError  # noqa: E402 - after the path is complete
from dist_testing.gpus.devices import gpus_present, visible_gpus  # noqa: E402
from dist_testing.gpus.gpu import GpuError  # noqa: E402 - after the path is complete
from dist_testing.gpus.lease import lease_gpus  # noqa: E402

_CASES = "tools/gpu/checklist_cases.py"
# Limit of one step: a context takes seconds, and torch's first import on a cold disk takes a minute. Seconds.
_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Step:
    """One check."""

    name: str  # its name for `--only`
    shows: str  # the behaviour that it checks
    command: Sequence[str]  # arguments of the interpreter
    code: int = 0  # the expected exit code
    output: str = ""  # a regular expression that the output must match
    keeps_gpu: bool = False  # whether this process leases the first GPU during the step
    fills_gpu: bool = False  # whether a program without a lease uses most of the first GPU's memory during the step
    env: Mapping[str, str] = field(default_factory=dict)  # additions to the environment


def _pytest(*arguments: str, case: str = "") -> list[str]:
    # pytest collects a file of any name if the command names it.
    cases = [f"{_CASES}::{case}"] if case else []
    return ["-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "--durations=0", *arguments, *cases]


def _shared(backend: str, ranks: int) -> list[str]:
    sizes = (f"--dist-backend={backend}", f"--dist-ranks-per-gpu={ranks}", f"--dist-world-size={ranks}")
    return [*sizes, "--dist-on-missing=fail"]


_NCCL = "test_a_world_of_nccl"
_ONE = ("--dist-backend=nccl", "--dist-world-size=1")
_ONE_HERE = (*_ONE, "--dist-on-missing=fail")
_FIRST_GPU = {"CUDA_VISIBLE_DEVICES": "0"}

_STEPS = (
    Step("listing", "discovery, without a CUDA context", ["-m", "dist_testing.gpus"], output=r"[1-9]\d* GPU\(s\)"),
    Step(
        "nccl_record",
        "the calls that the ledger has of nccl, whose engine is another one since torch 2.15",
        _pytest(*_ONE_HERE, case="test_the_ledger_has_the_calls_of_nccl"),
        output="1 passed",
    ),
    *(
        Step(
            f"shared_{isolation}",
            f"four ranks of gloo share the first GPU, made by {isolation}; the times are those of one case",
            _pytest(*_shared("cuda_gloo", 4), f"--dist-isolation={isolation}", _CASES),
        )
        for isolation in ("fork", "spawn", "pool")
    ),
    Step(
        "suite",
        "the wrapper's suite on CUDA tensors, four ranks on one GPU",
        _pytest(*_shared("cuda_gloo", 4), "tests/test_pg_wrapper.py"),
    ),
    Step(
        "autograd",
        "ranks that are threads: a backward pass on the GPU runs on the rank's own thread, and sees its group",
        _pytest(
            "--dist-backend=threaded",
            "--dist-isolation=thread",
            case="test_a_backward_pass_of_a_thread_sees_the_ranks_group",
        ),
        output=r"1 passed",
        # Threads lease no GPU.
        keeps_gpu=True,
        env=_FIRST_GPU,
    ),
    Step("nccl", "a world of one rank of NCCL", _pytest(*_ONE_HERE, case=_NCCL)),
    Step(
        "nccl_skips",
        "the reason why larger worlds of NCCL do not run here",
        _pytest("--dist-backend=nccl", "--dist-world-size=64", case=_NCCL),
        output=r"Need at least 64 CUDA devices \(found \d+\)",
    ),
    Step(
        "nccl_suites",
        "the suites on two ranks of NCCL that share the first GPU",
        _pytest(*_shared("nccl", 2), "tests/test_pg_wrapper.py", "tests/test_dist2.py"),
        output=r"[1-9]\d* passed",
    ),
    *(
        Step(
            f"nccl_shared_{isolation}",
            f"four ranks of NCCL share the first GPU, made by {isolation}, and train a sharded model",
            _pytest(
                *_shared("nccl", 4),
                f"--dist-isolation={isolation}",
                f"{_CASES}::{_NCCL}",
                case="test_ranks_of_nccl_train_a_sharded_model",
            ),
            output="2 passed",
        )
        for isolation in ("fork", "pool")
    ),
    Step(
        "hang",
        "a rank that makes one call less than the others is named, with the call",
        _pytest(*_shared("nccl", 3), "--dist-timeout=20", case="test_a_rank_that_stays_away"),
        code=1,
        output="all_reduce",
    ),
    Step(
        "death",
        "a rank that is killed during a call is the culprit, and the others end",
        _pytest(*_shared("nccl", 3), "--dist-timeout=60", case="test_a_rank_that_dies"),
        code=1,
        output=r"rank 1 was killed by SIGKILL",
    ),
    Step(
        "kernel",
        "an error of a kernel fails the test that has started it, although the test does not wait for it",
        _pytest(*_ONE, case="test_a_kernel_that_fails"),
        code=1,
        output="device-side assert",
    ),
    Step(
        "memory",
        "a case whose GPU is full names the process that has its memory, and fails",
        _pytest(*_ONE, "--dist-timeout=60", case=_NCCL),
        code=1,
        output=r"less than half of the memory is free",
        fills_gpu=True,
        env=_FIRST_GPU,
    ),
    Step(
        "lease",
        "a case whose GPU this process has leased names this process, and fails at half of its limit",
        _pytest(*_ONE, "--dist-timeout=3", case=_NCCL),
        code=1,
        output=r"could not be had within 2 s.*GPU 0: process \d+",
        keeps_gpu=True,
        env=_FIRST_GPU,
    ),
    Step(
        "visible",
        "a machine whose GPUs are hidden: a failure, because they were promised",
        _pytest(*_ONE_HERE, case=_NCCL),
        code=1,
        output=r"found 0; CUDA_VISIBLE_DEVICES='' hides every device",
        env={"CUDA_VISIBLE_DEVICES": ""},
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps; return 0 if every step ended as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [step.name for step in _STEPS]
    parser.add_argument("--only", metavar="STEP[,STEP...]", help=f"of {', '.join(names)}")
    only = parser.parse_args(arguments).only
    chosen = only.split(",") if only is not None else names
    if unknown := [name for name in chosen if name not in names]:
        parser.error(f"--only: no step {', '.join(map(repr, unknown))}; there are {', '.join(names)}")
    try:
        visible = visible_gpus(gpus_present())
        if not visible.gpus:
            print(f"No GPU to run the checks on ({visible.remark or 'no device node'}).", file=sys.stderr)
            return 1
        failed = [step.name for step in _STEPS if step.name in chosen and not _run(step)]
    except DistTestingError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"\n{len(chosen) - len(failed)} of {len(chosen)} steps ended as expected.")
    if failed:
        print(f"Not: {', '.join(failed)}")
    return 1 if failed else 0


@contextmanager
def _filled_gpu() -> Iterator[None]:
    """Fill most of the first visible GPU's memory by a program without a lease."""
    program = """if True:
        import sys, torch
        kept = torch.empty(int(torch.cuda.mem_get_info()[0] * 0.8), dtype=torch.uint8, device="cuda")
        print("full", flush=True)
        sys.stdin.read()
    """
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as filler:
        assert filler.stdin is not None
        assert filler.stdout is not None
        if filler.stdout.readline() != b"full\n":
            raise GpuError(
                "the program that fills the GPU has ended.\n"
                "Its error is above; most likely this torch has no CUDA.\n"
                "Run the checklist with a torch that has."
            )
        yield
        filler.stdin.close()


@contextmanager
def _kept_gpu() -> Iterator[None]:
    """Lease the first visible GPU to this process."""
    lease = lease_gpus(1, visible_gpus(gpus_present()).gpus[:1], limit_s=_LIMIT_S)
    try:
        yield
    finally:
        lease.release()


def _run(step: Step) -> bool:
    print(f"\n=== {step.name}: {step.shows}\n$ {' '.join(['python', *step.command])}", flush=True)
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with ExitStack() as stack:
        if step.keeps_gpu:
            stack.enter_context(_kept_gpu())
        if step.fills_gpu:
            stack.enter_context(_filled_gpu())
        began_s = time.monotonic()
        try:
            ended = subprocess.run(
                [sys.executable, *step.command],
                cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": path, **step.env},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_LIMIT_S,
            )
            code, output = ended.returncode, ended.stdout
        except subprocess.TimeoutExpired as error:
            code, output = -1, f"{error.stdout or b''!r}\nstopped after {_LIMIT_S:.0f} s"
    print(output.rstrip())
    is_good = code == step.code and re.search(step.output, output, re.DOTALL) is not None
    wanted = f"exit code {step.code}" + (f" and {step.output!r}" if step.output else "")
    print(f"--- {'good' if is_good else 'BAD'}: exit code {code}, {time.monotonic() - began_s:.1f} s; wanted: {wanted}")
    return is_good


if __name__ == "__main__":
    sys.exit(main())
