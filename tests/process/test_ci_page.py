"""The files for CI of docs/ci.md: they are YAML, they agree, and the commands of pytest do what the page says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.children import write_file
from tests.support.starter import Starter

yaml = pytest.importorskip("yaml", reason="PyYAML (requirements_unit.txt) is not installed")

_PAGE = Path(__file__).parents[2] / "docs" / "ci.md"
_SECTION = re.compile(r"^## (\w+) on (\w+).*?^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Each part of a command that a service replaces: GitHub's expressions, GitLab's variables.
_PLACEHOLDER = re.compile(r"\$\{\{ matrix\.(\w+) \}\}|\$(\w+)")
_SERVICES = {"GitHub", "GitLab", "Buildkite"}

_TESTS = """
import pytest

@pytest.mark.distributed(world_size=2)
def test_everywhere(world):
    world.barrier()

@pytest.mark.distributed(world_size=2, backends=["nccl"])
def test_nccl(world):
    world.barrier()

def test_known():
    assert False
"""
_QUARANTINE = """
schema = 1

[[row]]
cases = ["test_a.py::test_known"]
mode = "run"
reason = "fails"
link = "https://bugs.example.org/1"
owner = "a team"
expires = 9999-12-31
"""

# Name of a job to the words of its commands.
Commands = dict[str, list[list[str]]]


def _recipes() -> dict[tuple[str, str], Any]:
    """Return the parsed file for each runner of tests and service."""
    found = _SECTION.findall(_PAGE.read_text(encoding="utf-8"))
    return {(runner, service): yaml.safe_load(text) for runner, service, text in found}


def _commands(service: str, recipe: Any) -> Commands:
    """Return what each job runs, without the commands that are particular to a service."""
    jobs = {"GitHub": _github_jobs, "GitLab": _gitlab_jobs, "Buildkite": _buildkite_jobs}[service](recipe)
    return {
        name: [words for line in script.splitlines() if (words := shlex.split(line)) and _is_shared(words)]
        for name, script in jobs
    }


def _is_shared(words: list[str]) -> bool:
    return words[0] in ("pytest", "bazel") or (words[0] == "python" and "--github" not in words)


def _filled(text: str, values: dict[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda found: values[found[1] or found[2]], text)


def _github_jobs(recipe: Any) -> Iterator[tuple[str, str]]:
    for name, job in recipe["jobs"].items():
        assert job["runs-on"]
        script = "\n".join(step["run"] for step in job["steps"] if "run" in step)
        assert all(("run" in step) != ("uses" in step) for step in job["steps"]), name
        rows = job.get("strategy", {}).get("matrix", {}).get("include", [{"job": name}])
        yield from ((row["job"], _filled(script, row)) for row in rows)


def _gitlab_jobs(recipe: Any) -> Iterator[tuple[str, str]]:
    for name, given in recipe.items():
        if name == "stages" or name.startswith("."):
            continue
        job = {**recipe.get(given.get("extends"), {}), **given}
        assert job["stage"] in recipe["stages"], name
        script = "\n".join([*job["script"], *job.get("after_script", ())])
        yield name, _filled(script, {"CI_JOB_NAME": name, **job.get("variables", {})})


def _buildkite_jobs(recipe: Any) -> Iterator[tuple[str, str]]:
    for step in recipe["steps"]:
        if "wait" not in step:
            # Buildkite replaces variables when it uploads the file, and the machine has other values than the job.
            assert "$" not in step["command"], step
            found = re.fullmatch(r"(?:trap '(.+)' EXIT\n)?(.+)", step["command"], re.DOTALL)
            assert found is not None
            yield step["label"], "\n".join([found[2], *(found[1] or "").split(" && ")])


def test_the_services_run_the_same_commands() -> None:
    """If this fails, a file is no YAML, a service lacks a job, users of one test less, or old results count."""
    recipes = _recipes()
    assert set(recipes) == {(runner, service) for runner in ("pytest", "Bazel") for service in _SERVICES}
    jobs = {"cpu", "gpu", "ran-nowhere"}
    for runner, wanted in (("pytest", jobs), ("Bazel", jobs | {"targets"})):
        by_service = {service: _commands(service, recipes[runner, service]) for service in _SERVICES}
        for service, commands in by_service.items():
            assert set(commands) == wanted, service
            assert all(commands.values()), service
            assert commands == by_service["GitHub"], service
            # Of that run alone: bazel-testlogs has results of earlier ones, too.
            written = [commands[job][-1][-1].partition("=") for job in ("cpu", "gpu")]
            assert all(option.startswith("--junit") for option, _, _ in written), service
            assert [file for _, _, file in written] == commands["ran-nowhere"][-1][-2:], service


def test_the_commands_of_pytest_do_what_the_page_says(starter: Starter, tmp_path: Path) -> None:
    """If this fails, a copied file fails at once, decides by a quarantined test, or passes what ran nowhere."""
    write_file(tmp_path, "test_a.py", _TESTS)
    write_file(tmp_path, "quarantine.toml", _QUARANTINE)
    write_file(tmp_path, "pytest.ini", "[pytest]\naddopts = -p dist_testing.core.pytest.plugin\n")
    commands = _commands("GitHub", _recipes()["pytest", "GitHub"])

    def run(words: list[str]) -> tuple[int, str]:
        child = starter.start(["-m", "pytest", *words[1:]] if words[0] == "pytest" else words[1:], tmp_path)
        return child.wait(), child.log

    ((code, log),) = map(run, commands["cpu"])
    assert code == 0, log
    assert "1 passed, 1 deselected, 1 quarantined" in log
    (nowhere,) = commands["ran-nowhere"]
    cpu, gpu = nowhere[-2:]
    # Before the other job has run.
    (code, log) = run([*nowhere[:-2], cpu, cpu.replace("cpu", "other")])
    assert code == 2, log
    ((code, log),) = map(run, commands["gpu"])
    assert "2 failed, 1 deselected" in log or "2 passed, 1 deselected" in log
    missing = 0 if "2 passed" in log else 1
    assert code == missing
    assert (tmp_path / gpu).is_file()
    # A job whose GPUs are missing has run nothing.
    (code, log) = run(nowhere)
    assert code == missing, log
    assert f"{missing} of 3 cases ran in no job" in log
