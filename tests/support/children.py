"""Runs test files in child processes: under pytest, under unittest, or as Bazel would."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import dist_testing
from dist_testing.core.ground.spec import SCHEMA
from tests.support.starter import LIMIT_S, Child, Starter

Env = Mapping[str, str | None]

_SETTINGS = """
    [pytest]
    addopts = -p dist_testing.core.pytest.plugin --strict-markers --color=no
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """A child that has ended."""

    code: int  # its exit code
    log: str  # all that it printed

    def check(self, *, log: Sequence[str] = (), **names: str) -> None:
        """Check the outcome of every test, and texts in the log.

        Args:
            log: Texts that the log must have.
            **names: Outcome to the names of its tests, in any order: `passed="test_a test_b", failed="test_c"`. pytest
                tells a skip by its reason, so skipped tests have no name here.
        """
        assert _by_outcome(self.outcomes()) == _named(names), self.log
        self._has(log)

    def check_by_name(self, count: int, *log: str) -> None:
        """Check that only the tests with "fails" in class or method fail, of `count`; and texts in the log."""
        words = ("PASSED ", "FAILED ", "ERROR ")
        told = [line.split(" - ")[0].partition(" ") for line in self.log.splitlines() if line.startswith(words)]
        expected = [("FAILED" if "fails" in name.lower() else "PASSED", " ", name) for *_, name in told]
        assert told == expected, self.log
        assert len(told) == count, told
        self._has(log)

    def _has(self, texts: Sequence[str]) -> None:
        for text in texts:
            assert text in self.log, f"{text!r} is not in:\n{self.log}"

    def outcomes(self) -> dict[str, str]:
        """Read pytest's short summary (`-rA`): last part of each test's name, to its outcome; without warnings."""
        words = ("PASSED", "FAILED", "SKIPPED", "XFAIL", "XPASS", "ERROR")
        lines = [line.split(" - ")[0] for line in self.log.splitlines() if line.startswith(words)]
        return {line.rpartition("::")[2]: line.partition(" ")[0] for line in lines if "::" in line}

    def failures(self) -> dict[str, str]:
        """Read pytest's section of failures: last part of each test's name, to its report."""
        section = self.log.partition("= FAILURES =")[2].partition("\n")[2]
        # The title of another section ends it.
        section = re.split(r"^={3,} .+ =*$", section, flags=re.MULTILINE)[0]
        parts = re.split(r"^_{2,} (.+?) _{2,}\n", section, flags=re.MULTILINE)
        return {name.rpartition(".")[2]: report for name, report in zip(parts[1::2], parts[2::2], strict=True)}


def _by_outcome(outcomes: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the names of each outcome, sorted."""
    return {
        word.lower(): sorted(name for name, outcome in outcomes.items() if outcome == word)
        for word in outcomes.values()
    }


def _named(names: Mapping[str, str]) -> dict[str, list[str]]:
    return {outcome: sorted(text.split()) for outcome, text in names.items()}


def write_file(folder: Path, name: str, source: str) -> Path:
    """Write a source that is indented like the test that contains it."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return path


def start_pytest(
    starter: Starter, folder: Path, *options: str, env: Env | None = None, fresh: bool = False, **more: Any
) -> Child:
    """Start `python -m pytest` with the plugin, in a folder that is a project of its own.

    `options` are files, which exist already, and options; `env` has additions to the environment; `fresh` and `more`
    are for `Starter.start`.
    """
    settings = write_file(folder, "pytest.ini.new", _SETTINGS)
    # At once: another rank, started before, may be reading the same settings.
    settings.replace(folder / "pytest.ini")
    return starter.start(["-m", "pytest", *options], folder, env=env, fresh=fresh, **more)


def run_pytest(
    starter: Starter,
    folder: Path,
    *options: str,
    env: Env | None = None,
    fresh: bool = False,
    limit_s: float = LIMIT_S,
    **more: Any,
) -> Ended:
    """Run `start_pytest` to its end, and check that neither processes nor the run's folder are left."""
    child = start_pytest(starter, folder, *options, env=env, fresh=fresh, **more)
    code = child.wait(limit_s)
    assert_no_folder_left(folder)
    return Ended(code, child.log)


def run_cases(starter: Starter, folder: Path, source: str, *options: str, **env: str) -> Ended:
    """Run `run_pytest` on one file, `test_cases.py`, with this content; `env` has additions to the environment."""
    write_file(folder, "test_cases.py", source)
    return run_pytest(starter, folder, "-rA", *options, "test_cases.py", env=env)


def assert_no_folder_left(folder: Path) -> None:
    """Check that no run's folder and no rendezvous file is left in a child's temporary folder."""
    left = [path.name for path in (folder / "tmp").iterdir() if path.name.startswith("dist-")]
    assert not left, f"left in {folder / 'tmp'}: {left}"


@dataclass(frozen=True, slots=True)
class XmlResult:
    """One `<testcase>`."""

    outcome: str  # "passed", "failure", "error" or "skipped"
    message: str  # the attribute of that name
    text: str  # the text of the element
    time_s: float
    properties: Mapping[str, str]  # name to value


class Target:
    """The files and variables that Bazel creates for a `dist_py_test`: runfiles, a spec, and its test protocol."""

    def __init__(
        self,
        folder: Path,
        sources: Mapping[str, str],
        *,
        backend: str = "gloo",
        world_size: int = 2,
        promised_gpus: int | None = None,
        spec: Mapping[str, Any] | str | None = None,
    ) -> None:
        """Write the files.

        `sources` has the content of each test file by its name; `backend` is a name in the table of backends;
        `promised_gpus` is the number of GPUs that the configuration promises; `spec` has fields that replace those of
        the spec, or is its whole text.
        """
        self.folder = folder
        self.xml_file = folder / "test.xml"
        self.premature_exit_file = folder / "premature_exit"
        self.warnings_file = folder / "warnings"
        self.tmp = folder / "tmp"
        # Bazel creates this folder.
        self.outputs = folder / "outputs"
        self.outputs.mkdir()
        runfiles = folder / "runfiles"
        for name, source in sources.items():
            write_file(runfiles / "_main" / "pkg", name, source)
        declared = json.loads(resources.files(dist_testing).joinpath("backends.json").read_text(encoding="utf-8"))
        table = declared["backends"]
        gpus = table[backend]["gpus_per_rank"]
        fields = {
            "backend": table[backend],
            "backends": [backend],
            "isolation": "fork",
            "schema": SCHEMA,
            "settings": {"gpus": {"archs": [], "per_rank": gpus, "ranks_per_gpu": 1}} if gpus else {},
            "srcs": [f"//pkg:{name}" for name in sources],
            "target": f"//pkg:cases_{backend}",
            "world_sizes": [world_size],
        }
        text = spec if isinstance(spec, str) else json.dumps({**fields, **(spec or {})})
        self.package = runfiles / "_main" / "pkg"
        self.env: dict[str, str | None] = {
            "BAZEL_TEST": "1",
            "DIST_TESTING_SPEC": text,
            "PYTHONSAFEPATH": "1",
            "RUNFILES_DIR": str(runfiles),
            "TEST_PREMATURE_EXIT_FILE": str(self.premature_exit_file),
            "TEST_SRCDIR": str(runfiles),
            "TEST_TARGET": f"//pkg:cases_{backend}",
            "TEST_TIMEOUT": "300",
            "TEST_TMPDIR": str(self.tmp),
            "TEST_UNDECLARED_OUTPUTS_DIR": str(self.outputs),
            "TEST_WARNINGS_OUTPUT_FILE": str(self.warnings_file),
            "TEST_WORKSPACE": "_main",
            "XML_OUTPUT_FILE": str(self.xml_file),
        }
        if promised_gpus is not None:
            promise = {"promised": {"nvidia": promised_gpus}, "schema": 1}
            write_file(self.package, "gpu_promise.json", json.dumps(promise))
            self.env["DIST_TESTING_GPU_PROMISE"] = "_main/pkg/gpu_promise.json"

    def start(self, starter: Starter, *arguments: str, env: Env | None = None, **more: Any) -> Child:
        """Start the main program of the rules with the target's `args`.

        `env` has additions to the protocol, and None removes a variable; `more` is for `Starter.start`.
        """
        main = Path(dist_testing.__file__).parent / "main" / "dist_test_main.py"
        given = {**self.env, **(env or {})}
        return starter.start([str(main), *arguments], self.folder, env=given, **more)

    def run(
        self,
        starter: Starter,
        *arguments: str,
        env: Env | None = None,
        limit_s: float = LIMIT_S,
        **more: Any,
    ) -> Ended:
        """Run `start` to its end, and check that nothing is left of the run."""
        child = self.start(starter, *arguments, env=env, **more)
        code = child.wait(limit_s)
        assert_no_folder_left(self.folder)
        return Ended(code, child.log)

    def xml(self) -> dict[str, XmlResult]:
        """Return the cases in the XML, by name."""
        results = {}
        for case in ElementTree.parse(self.xml_file).iter("testcase"):
            properties = {item.get("name", ""): item.get("value", "") for item in case.iter("property")}
            worse = [child for child in case if child.tag != "properties"]
            assert len(worse) < 2, "a case has one outcome"
            result = worse[0] if worse else None
            results[case.get("name", "")] = XmlResult(
                outcome="passed" if result is None else result.tag,
                message="" if result is None else result.get("message", ""),
                text="" if result is None else result.text or "",
                time_s=float(case.get("time", "nan")),
                properties=properties,
            )
        return results

    def check(self, **names: str) -> dict[str, XmlResult]:
        """Check the outcome of every case in the XML, as `Ended.check` does, and return the cases by name."""
        results = self.xml()
        assert _by_outcome({name: result.outcome for name, result in results.items()}) == _named(names)
        return results

    def xml_keys(self) -> list[str]:
        """Return the keys of the cases in the XML: class name and name."""
        cases = ElementTree.parse(self.xml_file).iter("testcase")
        return [f"{case.get('classname')}.{case.get('name')}" for case in cases]

    def suite_properties(self) -> dict[str, str]:
        """Return the properties of the whole run in the XML."""
        properties = ElementTree.parse(self.xml_file).iterfind("testsuite/properties/property")
        return {item.get("name", ""): item.get("value", "") for item in properties}


@dataclass(frozen=True, slots=True)
class Bazel:
    """Runs the main program of the rules for one test. The fixture `bazel` makes it."""

    starter: Starter
    folder: Path

    def run(
        self,
        sources: str | Mapping[str, str],
        *arguments: str,
        code: int = 0,
        env: Env | None = None,
        fresh: bool = False,
        limit_s: float = LIMIT_S,
        **target: Any,
    ) -> tuple[Target, Ended]:
        """Make a target, run it to its end, and check its exit code.

        Args:
            sources: File name to content of each test file, or the content of `test_cases.py`.
            *arguments: The target's `args`.
            code: The exit code that the run must have.
            env: Additions to the protocol; None removes a variable.
            fresh: See `Starter.start`.
            limit_s: Seconds for the run.
            **target: For `Target`.
        """
        made = Target(self.folder, {"test_cases.py": sources} if isinstance(sources, str) else sources, **target)
        ended = made.run(self.starter, *arguments, env=env, fresh=fresh, limit_s=limit_s)
        assert ended.code == code, ended.log
        return made, ended
