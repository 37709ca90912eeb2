"""One table of versions, and the files that repeat it for readers and for tools that cannot read JSON."""

from __future__ import annotations

import json
import re
import tomllib
import warnings
from pathlib import Path

import pytest

import dist_testing
from dist_testing import compat

ROOT = Path(__file__).parents[2]
TABLE = json.loads((ROOT / "dist_testing" / "versions.json").read_text(encoding="utf-8"))
OLDEST, NEWEST = TABLE["bazel"]["oldest"], TABLE["bazel"]["newest"]


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_readme_has_the_table() -> None:
    """If it fails, the README promises other versions than CI runs."""
    rows = [
        "| {bazel} | {rules_python} | {python} | {torch} | {cpu} | {said} |".format(
            said="proven" if row["proven"] else "not yet run", **row
        )
        for row in TABLE["combinations"]
    ]
    readme = _text("README.md")
    heading = "| Bazel | rules_python | Python | torch | CPU | |\n|---|---|---|---|---|---|\n"
    assert heading + "\n".join(rows) + "\n\n" in readme
    torch = TABLE["torch"]
    pythons = f"Python {TABLE['python']['oldest']} and newer"
    assert f"Bazel {OLDEST} to {NEWEST}; {pythons}; torch {torch['oldest']} to {torch['newest']}," in readme
    assert f"; pytest {TABLE['oldest_packages']['pytest']} and newer." in readme


def test_bazelw_and_the_module_take_the_same_bazels() -> None:
    """If it fails, one of them refuses what the other one uses."""
    bounds = re.findall(r'"([<>]=?)(\d+)\.(\d+)\.0"', _text("MODULE.bazel"))
    # Consumers can try a Bazel that is newer than this table.
    assert bounds == [(">=", *OLDEST.split("."))]
    bazelw = _text("bazelw")
    assert f"FITS_TEXT='{OLDEST} up to {NEWEST}.x'" in bazelw
    fits = re.search(r"^readonly FITS='([^']+)'", bazelw, re.MULTILINE)
    assert fits is not None
    major, minor = OLDEST.split(".")
    for version, is_right in (
        (f"{OLDEST}.0", True),
        (f"{major}.{int(minor) - 1}.0", False),
        (f"{NEWEST}.9.1", True),
        (f"{int(NEWEST) + 1}.0.0", False),
        *((row["bazel"], True) for row in TABLE["combinations"]),
    ):
        assert (re.match(fits[1], version) is not None) == is_right, version


def test_the_registry_runs_every_bazel() -> None:
    """If it fails, a release is published for an untried Bazel."""
    lists = re.findall(r"bazel:\n((?: +- [\d.]+\n)+)", _text(".bcr/presubmit.yml"))
    assert len(lists) == 2
    wanted = sorted({row["bazel"] for row in TABLE["combinations"]})
    assert [sorted(re.findall(r"[\d.]+", listed)) for listed in lists] == [wanted, wanted]


def test_the_package_takes_the_same_pythons_and_packages() -> None:
    """If it fails, pip installs the package where it cannot work."""
    project = tomllib.loads(_text("pyproject.toml"))["project"]
    assert project["requires-python"] == f">={TABLE['python']['oldest']}"
    # Only Bazel's targets need this one.
    runfiles = f"bazel-runfiles>={TABLE['oldest_packages']['bazel-runfiles']}"
    assert project["optional-dependencies"]["bazel"] == [runfiles]
    # A bound above would let pip replace the user's torch.
    oldest = {"torch": TABLE["torch"]["oldest"], **TABLE["oldest_packages"]}
    assert sorted([*project["dependencies"], runfiles]) == sorted(f"{name}>={low}" for name, low in oldest.items())
    shown = [text.rpartition(" ")[2] for text in project["classifiers"] if "Python :: 3." in text]
    assert {row["python"] for row in TABLE["combinations"]} == set(shown)


def test_every_file_names_the_version_of_the_package() -> None:
    """If it fails, pip and Bazel name two versions for one release, or a page shows an old one."""
    dynamic = tomllib.loads(_text("pyproject.toml"))["tool"]["setuptools"]["dynamic"]
    assert dynamic["version"] == {"attr": "dist_testing.__version__"}
    module = re.search(
        r'^module\(\n    name = "dist_testing",\n    version = "(.+)"', _text("MODULE.bazel"), re.MULTILINE
    )
    shown = re.search(
        r'^bazel_dep\(name = "dist_testing", version = "(.+)"\)', _text("docs/consumers.md"), re.MULTILINE
    )
    assert [found and found[1] for found in (module, shown)] == [dist_testing.__version__] * 2


def test_what_ci_runs_is_proven() -> None:
    """If it fails, the table calls a combination proven that no job of this repository runs."""
    proven = [row for row in TABLE["combinations"] if row["proven"]]
    assert {row["bazel"] for row in proven} == {_text(".bazelversion").strip()}
    locked = re.findall(r"^torch==([\d.]+)", _text("requirements.txt") + _text("requirements_cuda.txt"), re.MULTILINE)
    assert {row["torch"] for row in proven} == set(locked)
    assert {row["torch"] for row in TABLE["combinations"]} <= set(locked)


@pytest.mark.parametrize(
    ("version", "is_tested"),
    [("2.9.1", False), ("2.10.0", True), ("2.13.1+cpu", True), ("2.15.0+cu132", True), ("2.16", False)],
)
def test_the_warning_uses_the_table(version: str, is_tested: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it fails, users of an untested torch are not warned, or all users are."""
    monkeypatch.setattr("torch.__version__", version)
    compat.warn_if_untested.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compat.warn_if_untested()
    compat.warn_if_untested.cache_clear()
    texts = [str(warning.message) for warning in caught]
    tested = f"{TABLE['torch']['oldest']} to {TABLE['torch']['newest']}"
    expected = f"torch {version}: dist_testing is tested with torch {tested}.\n"
    assert [text.startswith(expected) for text in texts] == [True] * (not is_tested)
