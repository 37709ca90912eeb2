"""Finds the harness of a suite and the line that replaces it: `python -m dist_testing.adopt [OPTIONS] -- TEST COMMAND`.

pytest collects the suite, and up to three tests of each harness run with a trace. The command prints which harness
starts the ranks, where the suite names it, and the line to add. Then up to ten tests run under the suite's own harness
and with the line, and a table compares outcomes and times. No file of the suite is changed.

Exit status: 0 if the outcomes are the same, or nothing is compared; 1 if an outcome differs; 2 if the command line is
wrong, the suite cannot be run, or no harness is found; 130 if it was interrupted.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dist_testing.adopt.suite import Compared, Found, Suite, choose, outcome_in
from dist_testing.audit.command import Ran
from dist_testing.audit.hook.harnesses import Harness
from dist_testing.audit.program import parser_for, run_program, seconds_in, show, tell
from dist_testing.audit.seen import CaseSeen, Collected
from dist_testing.core.ground.errors import UsageError
from dist_testing.report.files import write_text
from dist_testing.report.words import columns, plural, seconds

_DIFFERENT = 1
_tell = functools.partial(tell, "adopt")
_SITES_SHOWN = 3
_SAMPLES = 3
# File of pytest's options -> the section that has `addopts`.
_SECTIONS = {"pyproject.toml": "tool.pytest.ini_options", "setup.cfg": "tool:pytest"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Look at the suite that the command line names, compare, and return the exit status."""
    return run_program(_parser(), arguments, _run)


def _run(given: argparse.Namespace, command: list[str], folder: Path) -> int:
    limit_s = seconds_in("--timeout", given.timeout)
    logs = Path(tempfile.mkdtemp(prefix="dist-adopt-"))
    _tell(f"output of the runs: {logs}")
    return _adopt(Suite(command, folder, logs, limit_s), command, given)


def _adopt(suite: Suite, command: Sequence[str], given: argparse.Namespace) -> int:
    _tell(f"collects: {' '.join(command)}")
    collected, ran = suite.collect()
    found = suite.find(collected)
    show(_collected(collected, ran))
    if not found:
        raise UsageError(
            f"{' '.join(command)}: no harness found in {plural(len(collected.tests), 'test')}.\n"
            "No test names what starts ranks: functions of torch.multiprocessing and torch.distributed.launcher, "
            "multiprocessing.Process, torchrun, torch's test classes, or the harness of a project that docs/adopt.md "
            "names.\n"
            "Name the distributed tests; for a harness of your own see docs/adopt.md."
        )
    plugins = list(dict.fromkeys(one.harness.plugin for one in found if one.harness.plugin))
    alone = {test for one in found if one.harness.runs_alone for test in one.tests}
    run_here = [one for one in found if alone.isdisjoint(one.tests)]
    traced = {}
    if plugins and run_here:
        # Several of each harness, because one may skip.
        samples = list(dict.fromkeys(test for one in run_here for test in choose(one.tests, _SAMPLES)))
        _tell(f"traces {plural(len(samples), 'test')}")
        seen = suite.trace(samples, collected)
        traced = {one.harness.name: _clearest(one, seen) for one in run_here}
    show(_plan(found, traced, collected, plugins))
    compared = None
    if plugins and not given.dry:
        using = {test for one in run_here for test in one.tests}
        tests = choose([test for test in collected.tests if test in using], given.tests)
        if tests:
            _tell(f"runs {plural(len(tests), 'test')} as the suite does, then with the line")
            compared = suite.compare(tests, collected, plugins)
            show(_table(compared))
    if given.json is not None:
        content = _content(command, found, traced, plugins, compared)
        write_text(given.json, json.dumps(content, indent=2) + "\n")
        _tell(f"{given.json.absolute()}: JSON")
    return _DIFFERENT if compared is not None and compared.different else 0


def _collected(collected: Collected, ran: Ran) -> Iterator[str]:
    idle = sum(not uses for uses in collected.tests.values())
    yield f"{plural(len(collected.tests), 'test')} collected; {idle} of them name no harness"
    if collected.errors:
        yield f"{plural(collected.errors, 'file')} could not be collected: {ran.log}"


def _plan(
    found: Sequence[Found], traced: Mapping[str, CaseSeen], collected: Collected, plugins: Sequence[str]
) -> Iterator[str]:
    for one in found:
        yield f"{one.harness.name}: {plural(len(one.tests), 'test')}; see {one.harness.page}"
        shown = [f"{site} ({plural(count, 'test')})" for site, count in one.sites[:_SITES_SHOWN]]
        more = len(one.sites) - len(shown)
        yield f"  named in {', '.join(shown)}" + (f" and {plural(more, 'more line')}" if more else "")
        if one.harness.name in traced:
            yield f"  traced {_seen(one.harness, traced[one.harness.name])}"
        elif one.harness.runs_alone:
            yield "  not run here: each of these tests needs a session of its own, and there is no adapter"
        elif plugins:
            yield "  not run here: some of these tests need a session of their own"
    if plugins:
        ini = Path(collected.ini) if collected.ini else Path(collected.root, "pytest.ini")
        yield from addopts_lines(ini, plugins)
    for page in [one.harness.page for one in found if not (plugins or one.harness.runs_alone)]:
        yield f"add to {Path(collected.root, 'conftest.py')} the hook that {page} shows"


def addopts_lines(ini: Path, plugins: Sequence[str]) -> Iterator[str]:
    """Yield where pytest's file of options gets the adapters, and the words for it in the form of that section."""
    section, is_list = _SECTIONS.get(ini.name, "pytest"), ini.suffix == ".toml"
    if ini.name == "pyproject.toml":
        with ini.open("rb") as file:
            tables = tomllib.load(file).get("tool", {}).get("pytest", {})
        # pytest 9 also takes TOML's own types, but refuses a file with both.
        if is_list := bool(tables.keys() - {"ini_options"}):
            section = "tool.pytest"
    yield f"add to addopts of [{section}] in {ini}{'' if ini.exists() else ' (new)'}:"
    words = [word for name in plugins for word in ("-p", name)]
    yield f"  {json.dumps(words)[1:-1] if is_list else ' '.join(words)}"


def _seen(harness: Harness, case: CaseSeen) -> str:
    calls, text = case.calls[harness.name], f"{case.id}: {case.outcome or 'no result'}"
    if calls:
        text += f"; {plural(calls, 'call')} of the harness"
    if case.ranks:
        processes = plural(len(case.rank_pids), "process", "processes")
        text += f"; {plural(case.world_size, 'rank')} of {case.backend} in {processes}"
    return text if _confirms(harness, case) else f"{text}; NOT CONFIRMED: it has no call of the harness and no rank"


def _confirms(harness: Harness, case: CaseSeen) -> bool:
    return case.calls[harness.name] > 0 or (bool(case.ranks) and not harness.started_by)


def _clearest(one: Found, seen: Mapping[str, CaseSeen]) -> CaseSeen:
    """Return the traced case of a harness that shows most of it."""
    cases = [seen[test] for test in one.tests if test in seen]
    return max(cases, key=lambda case: (_confirms(one.harness, case), bool(case.ranks), case.outcome == "passed"))


def _table(compared: Compared) -> Iterator[str]:
    rows = [("test", "own", "ours", "own time", "our time")]
    runs = (compared.own, compared.ours)
    for test in compared.tests:
        own, ours = (_result(run, test) for run in runs)
        rows.append((test, own["outcome"], ours["outcome"], seconds(own["seconds"]), seconds(ours["seconds"])))
    yield from columns(rows)
    for test in compared.different:
        yield f"DIFFERENT {test}"
        for name, run in zip(("own", "ours"), runs, strict=True):
            error = run.seen.cases[test].error
            yield f"  {name}: {outcome_in(run, test)}{': ' if error else ''}{error}"
    for name, run in zip(("own", "our"), runs, strict=True):
        if run.exit_status is None:
            yield f"the {name} run was ended after {seconds(run.seconds)} (--timeout)"
    same, both = len(compared.both) - len(compared.different), plural(len(compared.both), "test")
    yield f"{both} compared, {same} with the same outcome: {_faster(*compared.seconds)}"
    yield f"whole runs, with the start of pytest: {_faster(*(run.seconds for run in runs))}"


def _faster(own_s: float, ours_s: float) -> str:
    ratio = f" ({own_s / ours_s:.1f} times as fast)" if ours_s else ""
    return f"{seconds(own_s)} -> {seconds(ours_s)}{ratio}"


def _content(
    command: Sequence[str],
    found: Sequence[Found],
    traced: Mapping[str, CaseSeen],
    plugins: Sequence[str],
    compared: Compared | None,
) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": 1, "command": list(command), "plugins": list(plugins), "harnesses": []}
    for one in found:
        name, plugin, page, *_ = one.harness
        harness: dict[str, Any] = {"name": name, "plugin": plugin, "page": page, "tests": one.tests, "sites": one.sites}
        if case := traced.get(name):
            kept = {"outcome": case.outcome, "world_size": case.world_size, "backend": case.backend}
            processes = len(case.rank_pids)
            harness["traced"] = {"test": case.id, "calls": case.calls[name], "processes": processes, **kept}
        content["harnesses"].append(harness)
    if compared is not None:
        own_s, ours_s = compared.seconds
        tests = [
            {"id": test, "own": _result(compared.own, test), "ours": _result(compared.ours, test)}
            for test in compared.tests
        ]
        content["compared"] = {"tests": tests, "different": compared.different, "own_s": own_s, "ours_s": ours_s}
    return content


def _result(run: Ran, test: str) -> dict[str, Any]:
    case = run.seen.cases.get(test, CaseSeen(test))
    return {"outcome": outcome_in(run, test), "seconds": case.seconds, "error": case.error}


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 10_000):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of tests from 1 to 9999")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = parser_for("adopt", __doc__)
    add = parser.add_argument
    add("--dry", action="store_true", help="print the plan alone, and compare nothing")
    add("--tests", type=_count, default=10, metavar="N", help="how many tests to compare (default: %(default)s)")
    add("--timeout", default="600", metavar="S", help="limit of each run in seconds (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
