#!/usr/bin/env python3
"""Compare the verdicts of torch's own test classes and of the library on a table of faults.

    python tools/bench/verdicts.py [--only ROW,...] [--limit 20] [--no-torch] [--quick]

Each fault is real, and happens in a test that a child process runs: with torch's `MultiProcessTestCase` and the
library's, which share the test's body, or with torch's `MultiProcContinuousTest` and the library's worker pool. The
program records the verdict, the seconds until it was printed, whether its message tells which rank did what, and the
processes and temporary files that are left. It stops a suite that does not end, and kills everything that is left.

A run of the whole table takes about twenty minutes and writes docs/evidence/compared_with_torch.md; other runs only
print their rows. torch's classes need the packages expecttest, hypothesis and numpy; without them, use --no-torch.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

from options import ROOT, bench_parser, count, parse
from verdict_table.bodies import order_env
from verdict_table.cases import CASES, Case
from verdict_table.judge import LIBRARY, TORCH, Dialect, Finding, NothingHappenedError, judge
from verdict_table.page import page, table
from verdict_table.watch import Observed, watch

from dist_testing.core.process.lifetime import become_subreaper

_BENCH = Path(__file__).resolve().parent
_PAGE = ROOT / "docs" / "evidence" / "compared_with_torch.md"

_LIMIT_S = 20
# Time for the ranks to start; on a busy machine torch's class needs many times as long as on a quiet one. Seconds.
_START_LIMIT_S = 40.0
# torch's classes wait for several events in turn, each with the full limit.
_LIMITS_BEFORE_VERDICT = 4
# torch's clock runs while the ranks start: on a busy machine its limit may pass before the fault.
_ATTEMPTS = 3
# The library's as users start it, but without any configuration of this environment.
_PLAIN = ("-c", os.devnull, "--rootdir", str(_BENCH / "verdict_table"), "-p", "no:cacheprovider", "--color=no")
_COMMANDS = {
    TORCH: (sys.executable, str(_BENCH / "verdict_table" / "suite_torch.py")),
    LIBRARY: (sys.executable, str(_BENCH / "verdict_table" / "suite_library.py"), "-v", "-rs", *_PLAIN),
}
_QUICK = ("a-all_reduce", "continuous-kill", "d-sleep", "h", "k'")


def main() -> int:
    """Run the cases, and print and write the results; return 0 if all results of the library are right."""
    options = _options()
    if not become_subreaper():
        sys.stderr.write(
            "verdicts.py: this process cannot adopt orphan processes.\n"
            "It could not find and kill the processes that a suite leaves behind.\n"
            "Run it on Linux.\n"
        )
        return 1
    # A shell ignores the signal in programs that it starts in the background, and the runners would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    dialects = [TORCH, LIBRARY] if options.torch else [LIBRARY]
    findings: dict[Case, dict[str, Finding]] = {}
    for case in options.cases:
        for dialect in dialects:
            try:
                finding = _finding(case, dialect, options)
            except NothingHappenedError as error:
                sys.stderr.write(
                    f"verdicts.py: {error}\nThe machine is too busy for this limit.\nSet a higher --limit.\n"
                )
                return 1
            findings.setdefault(case, {})[dialect.name] = finding
            sys.stderr.write(f"{case.key}, {dialect.name}: {', '.join(finding.wrong) or 'right'}\n")
    if len(findings) == len(CASES) and options.torch:
        _PAGE.write_text(page(findings, limit_s=options.limit), encoding="utf-8")
        sys.stdout.write(f"written: {_PAGE.relative_to(ROOT)}\n")
    else:
        sys.stdout.write(table(findings))
    return 0 if all(of_case[LIBRARY.name].is_right for of_case in findings.values()) else 1


def _finding(case: Case, dialect: Dialect, options: argparse.Namespace, attempts: int = _ATTEMPTS) -> Finding:
    observed = _run(case, dialect, limit_s=options.limit)
    if options.logs:
        (options.logs / f"{case.key}.{dialect.name}.txt").write_text(observed.log, encoding="utf-8")
    try:
        return judge(case, dialect, observed)
    except NothingHappenedError:
        if attempts == 1:
            raise
        return _finding(case, dialect, options, attempts - 1)


def _run(case: Case, dialect: Dialect, *, limit_s: int) -> Observed:
    with tempfile.TemporaryDirectory(prefix="verdicts-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        env = {
            **os.environ,
            # The suites find their packages in the same places as this process (an environment, runfiles).
            "PYTHONPATH": os.pathsep.join([str(_BENCH), *filter(None, sys.path)]),
            "PYTHONUNBUFFERED": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            # Finding an address by the host's name is slow on some machines, and is not what the program compares.
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            # A cache does not count as a leftover.
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(limit_s),
            **order_env(case, limit_s=limit_s, events=folder / "events"),
        }
        return watch(
            _COMMANDS[dialect],
            env,
            folder,
            summary=dialect.summary,
            limit_s=_START_LIMIT_S + _LIMITS_BEFORE_VERDICT * limit_s,
            runner_signal=case.runner_signal,
            signal_when=case.fault_count,
        )


def _options() -> argparse.Namespace:
    parser = bench_parser(__doc__, quick=(f"--only={','.join(_QUICK)}", "--no-torch"), has_torch=True)
    parser.add_argument("--only", type=_only, metavar="ROW,...", help="rows (a, b', continuous) or cases (b-sleep)")
    parser.add_argument(
        "--limit", type=count, default=_LIMIT_S, help=f"limit of a test in seconds, default {_LIMIT_S}; torch's is 300"
    )
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="also keep the output of every suite")
    options = parse(parser)
    options.cases = options.only or tuple(CASES.values())
    if options.logs:
        options.logs.mkdir(parents=True, exist_ok=True)
    return options


def _only(text: str) -> tuple[Case, ...]:
    names = text.split(",")
    known = {name for case in CASES.values() for name in (case.row, case.key)}
    if unknown := [name for name in names if name not in known]:
        rows = ", ".join(dict.fromkeys(case.row for case in CASES.values()))
        raise argparse.ArgumentTypeError(f"{unknown[0]!r}: expected a row ({rows}) or the name of a case")
    return tuple(case for case in CASES.values() if case.row in names or case.key in names)


if __name__ == "__main__":
    sys.exit(main())
