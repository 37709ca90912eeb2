"""Under Bazel: plugins of pytest from a hub that gives all packages of a lock, and packages that are not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dist_testing
from tests.support.children import Target
from tests.support.starter import Starter

# Package to the name of its plugin, as pytest knows it, and to its module. pytest-timeout, for one, has two names.
_PLUGINS = {"First-Plugin": ("first_plugin", "first_plugin"), "second.plugin": ("second", "second_plugin")}

_TEST = """
    def test_plugins(pytestconfig):
        names = ("first_plugin", "second", "second_plugin")
        assert [name for name in names if pytestconfig.pluginmanager.has_plugin(name)] == EXPECTED
"""


def _target(folder: Path, named: tuple[str, ...], expected: list[str]) -> tuple[Target, dict[str, str | None]]:
    """Write a target with a hub that has both plugins, and deps that name some; return it and its environment."""
    site = folder / "site"
    for package, (name, module) in _PLUGINS.items():
        info = site / f"{module}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{module}.py").touch()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[pytest11]\n{name} = {module}\n", encoding="utf-8")
    target = Target(folder, {"test_cases.py": f"{_TEST}\n    EXPECTED = {expected}\n"})
    hub = folder / "runfiles" / "+wheels+pypi" / "_named"
    hub.mkdir(parents=True)
    (hub / "packages.txt").write_text("first_plugin\nsecond_plugin\ntorch\n", encoding="utf-8")
    for package in named:
        (hub / package).touch()
    # The tests of this repository load no plugins by themselves.
    path = os.pathsep.join([str(site), *sys.path])
    return target, {**target.env, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": None}


@pytest.mark.parametrize(
    ("named", "arguments", "more", "conftest", "expected"),
    [
        (("torch",), (), {}, "", []),
        (("torch", "first_plugin"), (), {}, "", ["first_plugin"]),
        (("torch",), ("-p", "second"), {}, "", ["second"]),
        (("torch",), (), {"PYTEST_PLUGINS": "first_plugin"}, "", ["first_plugin"]),
        (("torch",), (), {"PYTEST_ADDOPTS": "-p second"}, "", ["second"]),
        (("torch",), (), {}, "pytest_plugins = ['first_plugin', 'second_plugin']", ["first_plugin", "second_plugin"]),
        (("first_plugin", "second_plugin"), ("-p", "no:second"), {}, "", ["first_plugin"]),
        (("first_plugin", "second_plugin"), (), {"PYTEST_ADDOPTS": "-p no:second"}, "", ["first_plugin"]),
    ],
    ids=["none", "a dep", "-p", "PYTEST_PLUGINS", "addopts", "conftest.py", "-p no:", "no: in addopts"],
)
def test_only_plugins_that_somebody_names_are_loaded(
    tmp_path: Path,
    named: tuple[str, ...],
    arguments: tuple[str, ...],
    more: dict[str, str],
    conftest: str,
    expected: list[str],
) -> None:
    """If it fails, each plugin in a lock is in every test, or one that a target asks for is in none."""
    target, env = _target(tmp_path, named, expected)
    if conftest:
        (target.package / "conftest.py").write_text(conftest, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "dist_testing.core.bazel.named_plugins", *arguments]
    done = subprocess.run(
        [*command, f"--rootdir={target.package}", str(target.package / "test_cases.py")],
        env={name: value for name, value in {**env, **more}.items() if value is not None},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_plugins_of_other_hubs_are_loaded(starter: Starter, tmp_path: Path) -> None:
    """A hub of pip.parse gives a target only what its deps name."""
    target, env = _target(tmp_path, (), ["second"])
    (tmp_path / "runfiles" / "+wheels+pypi" / "_named" / "packages.txt").write_text("first_plugin\n", encoding="utf-8")
    # Through the runner, which starts pytest with the plugin.
    ended = target.run(starter, env=env, fresh=True)
    assert "1 passed" in ended.log, ended.log


_FLAG = "--@dist_testing//dist_testing/config:psutil="


def _run(*folders: Path) -> subprocess.CompletedProcess[str]:
    """Start the main program on an interpreter without packages, besides those of the folders."""
    main = Path(dist_testing.__file__).parent / "main" / "dist_test_main.py"
    path = ":".join(map(str, (main.parents[2], *folders)))
    env = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "TEST_TARGET": "//pkg:case_gloo"}
    # -S: without the site-packages of this interpreter.
    return subprocess.run([sys.executable, "-S", str(main)], env=env, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("state", ["empty", "not there"])
def test_wheels_that_did_not_arrive_name_the_flag(tmp_path: Path, state: str) -> None:
    """If it fails, a user of an executor reads of psutil, which is no dependency of theirs."""
    folder = tmp_path / "site-packages"
    if state == "empty":
        folder.mkdir()
    done = _run(folder)
    assert done.returncode == 1
    subject, cause, way_out = done.stderr.splitlines()
    assert subject == f"//pkg:case_gloo: No module named 'psutil'; {folder} is {state}."
    assert "Bazel does not bring a directory to its runfiles" in cause
    assert "--config=remote, or --@dist_testing//wheels:form=archive" in way_out


def test_a_target_without_the_package_names_its_flag(tmp_path: Path) -> None:
    """A hub of another kind has no such folder, and a folder with files did arrive."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "iniconfig.py").touch()
    done = _run(folder)
    assert done.returncode == 1
    subject, _, way_out = done.stderr.splitlines()
    assert subject.startswith("//pkg:case_gloo: No module named 'psutil' (sys.path: ")
    assert _FLAG in way_out


def test_a_target_without_runfiles_names_its_flag() -> None:
    """pip does not install it with the library, so a hub that is made from the library's needs may lack it."""
    main = Path(dist_testing.__file__).parent / "main" / "dist_test_main.py"
    # Python's own way to say that a module is not there.
    body = f"import runpy, sys; sys.modules['runfiles'] = None; runpy.run_path({str(main)!r}, run_name='__main__')"
    env = {"PYTHONPATH": ":".join([str(main.parents[2]), *sys.path]), "TEST_TARGET": "//pkg:case_gloo"}
    done = subprocess.run([sys.executable, "-c", body], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    subject, _, way_out = done.stderr.splitlines()
    assert subject.startswith("//pkg:case_gloo: import of runfiles halted")
    assert "--@dist_testing//dist_testing/config:runfiles=" in way_out


def test_a_fault_inside_a_package_keeps_its_traceback(tmp_path: Path) -> None:
    """If it fails, a package that lacks one of its own dependencies looks like a wrong flag."""
    (tmp_path / "psutil.py").write_text("import a_module_that_nobody_has\n", encoding="utf-8")
    done = _run(tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith("ModuleNotFoundError: No module named 'a_module_that_nobody_has'\n")
    assert "Traceback" in done.stderr
