"""The library's suites with other versions of torch and Python: `uvx nox -f tools/versions/noxfile.py`.

    nox -f tools/versions/noxfile.py --list
    nox -f tools/versions/noxfile.py --session "suites-3.12(torch='2.12')" -- unit compat

Each session is an environment with the wheels of the package registry. Without names of suites, all of them run. The
session prints a row for docs/evidence/versions_tried.md. uv finds the interpreters, or downloads them.
"""

from __future__ import annotations

import datetime
import json
import platform
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.14t")
# The last one is the newest release.
TORCHES = ("2.10", "2.11", "2.12", "2.13", "2.14", "newest")
# Suite -> its limit: about four times its duration on 2 free cores. Seconds.
LIMITS_S = {"unit": 900, "threaded": 400, "compat": 1200, "process": 3600}
# What the suites need beside torch. setuptools: some releases of torch import it and do not install it.
PACKAGES = (
    *("bazel-runfiles", "coverage", "expecttest", "hypothesis", "jinja2", "numpy", "nvidia-ml-py", "psutil"),
    *("pytest", "pytest-xdist", "setuptools<82"),
)
_VERSIONS = "import platform, pytest, torch; print(torch.__version__, platform.python_version(), pytest.__version__)"

nox.options.default_venv_backend = "uv"
nox.options.reuse_venv = "yes"


@nox.session(python=PYTHONS)
@nox.parametrize("torch", TORCHES)
def suites(session: nox.Session, torch: str) -> None:
    """Run the suites with the newest packages beside torch."""
    _run_suites(session, torch)


@nox.session(python=PYTHONS[0])
@nox.parametrize("torch", TORCHES[:1])
def oldest(session: nox.Session, torch: str) -> None:
    """Run the suites with the oldest packages that the library admits."""
    table = json.loads((ROOT / "dist_testing" / "versions.json").read_text(encoding="utf-8"))
    _run_suites(session, torch, *(f"{name}=={version}" for name, version in table["oldest_packages"].items()))


def _run_suites(session: nox.Session, torch: str, *more: str) -> None:
    session.install("--only-binary=:all:", "torch" if torch == "newest" else f"torch=={torch}.*", *PACKAGES, *more)
    variables = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    if str(session.python).endswith("t"):
        # Triton in torch's CUDA builds does not say that it can run without the GIL, and would switch it on.
        variables["PYTHON_GIL"] = "0"
    versions = str(session.run("python", "-c", _VERSIONS, silent=True, env=variables)).split()[-3:]
    chosen = session.posargs or list(LIMITS_S)
    cells = {suite: _run_suite(session, suite, variables) for suite in chosen}
    row = [*versions, *(cells.get(suite, "not run") for suite in LIMITS_S)]
    where = f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}"
    session.log(f"| {' | '.join([*row, datetime.date.today().isoformat(), where])} |")
    if any("failed" in cell for cell in cells.values()):
        session.error("there are failed tests")


def _run_suite(session: nox.Session, suite: str, variables: dict[str, str]) -> str:
    """Run one suite, and return its cell of the row. A suite that crashes, or is too slow, ends the session."""
    if suite not in LIMITS_S:
        session.error(f"there is no suite {suite!r}: the suites are {', '.join(LIMITS_S)}")
    results = Path(session.create_tmp()).resolve() / f"{suite}.xml"
    results.unlink(missing_ok=True)
    # pytest writes its results after SIGINT.
    limit = ("timeout", "--signal=INT", "--kill-after=30", str(LIMITS_S[suite]))
    # Without xdist, whose workers have threads: ranks are not forked from such a process, and `tests/process` fails.
    pytest = ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={results}", f"tests/{suite}")
    with session.chdir(ROOT):
        session.run(*limit, *pytest, external=True, env=variables, success_codes=[0, 1])
    cases = list(ElementTree.parse(results).getroot().iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    for case in failed:
        session.log(f"failed: {case.get('classname')}.{case.get('name')}")
    passed = f"{len(cases) - len(failed) - skipped}"
    return f"{passed}, **{len(failed)} failed**" if failed else passed
