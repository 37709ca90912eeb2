"""New repositories, repositories that exist, and the check."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from consumer_setup import cli
from consumer_setup.library import read_library

PROGRAM = Path(cli.__file__).absolute().parents[1] / "init.py"
LIBRARY = read_library(PROGRAM)
VERSION = LIBRARY.version
PIP = """\
pip = use_extension("@rules_python//python/extensions:pip.bzl", "pip")
pip.whl_mods(hub_name = "mods", whl_name = "torch")
pip.parse(hub_name = "third_party", python_version = "3.12", requirements_lock = "//deps:lock.txt")
"""


def _tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_new_repository_is_that_of_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise the page shows other files than users get. A second run must find nothing to do."""
    assert cli.main([f"--dir={tmp_path}"]) == 0
    found = _tree(tmp_path)
    assert found.keys() == {*LIBRARY.files, "dist_testing.bazelrc"}
    assert found.pop("dist_testing.bazelrc") == LIBRARY.flags
    found["MODULE.bazel"] = found["MODULE.bazel"].replace(str(LIBRARY.clone), "../dist_testing")
    assert found == LIBRARY.files
    told = capsys.readouterr().out
    assert "init: wrote mytests/BUILD.bazel\n" in told
    assert "init: next: uv pip compile " in told
    assert "init: next: bazel test --test_output=all //mytests:ring_gloo\n" in told
    before = _tree(tmp_path)
    assert cli.main([f"--dir={tmp_path}"]) == 0
    assert _tree(tmp_path) == before
    assert "wrote" not in capsys.readouterr().out


def test_a_file_with_bazels_other_name_stays(tmp_path: Path) -> None:
    """Otherwise all targets of the root package are gone."""
    (tmp_path / "BUILD").write_text('filegroup(name = "mine")\n')
    assert cli.main([f"--dir={tmp_path}"]) == 0
    assert not (tmp_path / "BUILD.bazel").exists()


def test_a_clone_beside_the_repository_is_named_as_a_neighbour(tmp_path: Path) -> None:
    """Otherwise colleagues, whose clones lie elsewhere, cannot load the repository."""
    (tmp_path / "dist_testing").symlink_to(PROGRAM.parents[2])
    program = tmp_path / "dist_testing" / "tools" / "init" / "init.py"
    assert cli.main([f"--dir={tmp_path / 'mine'}"], program) == 0
    assert (tmp_path / "mine" / "MODULE.bazel").read_text() == LIBRARY.files["MODULE.bazel"]


def test_own_lines_stay_and_missing_ones_follow(tmp_path: Path) -> None:
    """Otherwise the program damages a repository that works."""
    own = {
        "MODULE.bazel": 'bazel_dep(name = "rules_python", version = "1.4.0")\n' + PIP,
        ".bazelrc": "# Ours.\ntest --test_output=errors",
        ".gitignore": "/bazel-*\nbuild/\n",
    }
    for name, text in own.items():
        (tmp_path / name).write_text(text)
    assert cli.main([f"--dir={tmp_path}"]) == 0
    found = _tree(tmp_path)
    for name, text in own.items():
        assert found[name].startswith(text), name
    module = found["MODULE.bazel"]
    assert [module.count(part) for part in ('name = "rules_python"', 'p(name = "dist_testing"', "wheels")] == [1, 1, 0]
    assert 'dist_testing.packages(hub = "@third_party")' in module
    assert 'deps = ["@third_party//torch"]' in found["mytests/BUILD.bazel"]
    assert found[".bazelrc"].count("import %workspace%/dist_testing.bazelrc") == 1
    assert found[".gitignore"].splitlines().count("/bazel-*") == 1
    assert "/dist_testing_host.bazelrc" in found[".gitignore"]
    assert "requirements.in" not in found
    _replace(".bazelrc", "import ", "try-import ")(tmp_path)
    assert cli.main([f"--dir={tmp_path}"]) == 0
    assert _tree(tmp_path)[".bazelrc"].count("import %workspace%/dist_testing.bazelrc") == 1


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"WORKSPACE": ""}, "has WORKSPACE and no MODULE.bazel"),
        ({"MODULE.bazel": "wheels = 1\n"}, "the variable `wheels` is taken"),
        ({"MODULE.bazel": 'py = use_extension("x", "python")\npy.toolchain()\n'}, "MODULE.bazel:2: there is a"),
        ({"MODULE.bazel": "module(\n"}, "MODULE.bazel:1 cannot be understood"),
        ({"MODULE.bazel": "# \udce9\n"}, "it is not UTF-8"),
        ({"MODULE.bazel/x": ""}, "cannot be read: Is a directory"),
    ],
)
def test_repository_that_cannot_be_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], files: dict[str, str], said: str
) -> None:
    """Otherwise users get a traceback, or a repository that no longer loads."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    assert cli.main([f"--dir={tmp_path}"]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 3
    assert len(list(tmp_path.rglob("*"))) == len({part for name in files for part in (name, name.partition("/")[0])})


def test_a_link_out_of_the_repository_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise the program changes the flags of all repositories of a team."""
    (tmp_path / "shared.bazelrc").write_text("build --jobs=2\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".bazelrc").symlink_to("../shared.bazelrc")
    assert cli.main([f"--dir={tmp_path / 'mine'}"]) == 1
    assert "shared.bazelrc'" in capsys.readouterr().err
    assert _tree(tmp_path) == {"shared.bazelrc": "build --jobs=2\n", "mine/.bazelrc": "build --jobs=2\n"}


def test_wrong_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise the clone itself is changed, a second repository is made in the first, or an error is a traceback."""
    (tmp_path / "MODULE.bazel").touch()
    (tmp_path / "sub").mkdir()
    monkeypatch.delenv("BUILD_WORKSPACE_DIRECTORY", raising=False)
    monkeypatch.setenv("BUILD_WORKING_DIRECTORY", str(tmp_path / "sub"))
    assert cli.main([]) == 1
    assert f"is a folder of the repository '{tmp_path}'" in capsys.readouterr().err
    # The kernel refuses new files in /proc/sys to every user.
    for folder, said in ((LIBRARY.clone, "is dist_testing itself"), (Path("/proc/sys"), "cannot be written")):
        assert cli.main([f"--dir={folder}"]) == 1
        assert said in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        cli.main([f"--dir={tmp_path}", "--check", "--update"])


def _replace(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return change


def _flags_in_place_of_the_tag(command: str) -> Callable[[Path], None]:
    names = ("torch", "pytest", "psutil", "runfiles")
    flags = "".join(f"{command} --@dist_testing//dist_testing/config:{name}=@pypi//{name}\n" for name in names)

    def change(folder: Path) -> None:
        _replace("MODULE.bazel", "dist_testing.packages(", "python.other(")(folder)
        _replace(".bazelrc", "import ", flags + "import ")(folder)

    return change


def _repository(folder: Path) -> None:
    assert cli.main([f"--dir={folder}"]) == 0
    (folder / "requirements.txt").write_text("bazel-runfiles==1.7.0\npsutil==7.0\npytest==9.0\ntorch==2.13.0+cpu\n")
    (folder / ".bazelversion").write_text("8.4.2\n")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            _replace("dist_testing.bazelrc", "test --local_resources=gpu=1", "test --local_resources=gpu=8"),
            "    -test --local_resources=gpu=8\n    +test --local_resources=gpu=1",
        ),
        (lambda folder: (folder / "dist_testing.bazelrc").unlink(), "dist_testing.bazelrc does not exist"),
        (lambda folder: (folder / "requirements.txt").unlink(), "requirements.txt, the lock file of @pypi, does not"),
        (_replace("dist_testing.bazelrc", "\n", "\r\n"), "The line ends differ"),
        (_replace("MODULE.bazel", f'version = "{VERSION}"', 'version = "0.0.9"'), "MODULE.bazel:1: dist_testing is"),
        (_replace("MODULE.bazel", f'version = "{VERSION}"', 'repo_name = "dt"'), "Remove repo_name from that line"),
        (_replace("MODULE.bazel", '(name = "dist_testing"', '(name = "other"'), "has no bazel_dep on dist_testing"),
        (_replace("MODULE.bazel", "packages(hub =", "packages(torch ="), "does not name pytest, psutil, runfiles for"),
        # In a configuration a flag counts only sometimes.
        (_flags_in_place_of_the_tag("common:x"), "does not name torch, pytest, psutil, runfiles"),
        (_replace(".bazelrc", "import ", "# "), ".bazelrc does not import dist_testing.bazelrc"),
        (_replace(".bazelversion", "8.4.2", "10.0.0"), ".bazelversion asks for Bazel 10.0.0"),
        (_replace(".bazelversion", "8.4.2", "7.3.1"), ".bazelversion asks for Bazel 7.3.1"),
        (_replace("requirements.txt", "psutil", "other"), "requirements.txt lacks psutil"),
    ],
)
def test_a_difference_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], None], said: str
) -> None:
    """Otherwise users learn of an old copy from a flag that does not work. One difference is one complaint."""
    _repository(tmp_path)
    change(tmp_path)
    before = _tree(tmp_path)
    assert cli.main([f"--dir={tmp_path}", "--check"]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("init: ") == 1
    assert _tree(tmp_path) == before


@pytest.mark.parametrize("version", ["7.4.0", "7.x", "8", "8.4.2", "latest", "myfork/7.0"])
def test_repository_that_fits(tmp_path: Path, version: str) -> None:
    """Otherwise a CI job with the check is always red."""
    _repository(tmp_path)
    (tmp_path / ".bazelversion").write_text(version)
    assert cli.main([f"--dir={tmp_path}", "--check"]) == 0


def test_repository_of_several_files(tmp_path: Path) -> None:
    """Otherwise a repository that divides its files is called wrong, and gets a second hub and bazel_dep."""
    _repository(tmp_path)
    (tmp_path / "third_party").mkdir()
    for name, part, line in (
        ("MODULE.bazel", "lib.MODULE.bazel", 'include("//third_party:lib.MODULE.bazel")\n'),
        (".bazelrc", "lib.bazelrc", "import %workspace%/third_party/lib.bazelrc\n"),
    ):
        (tmp_path / name).rename(tmp_path / "third_party" / part)
        (tmp_path / name).write_text(line)
    # Each file has its own names.
    for old, new in (("\ndist_testing = ", "\ndt = "), ("dist_testing.packages", "dt.packages")):
        _replace("third_party/lib.MODULE.bazel", old, new)(tmp_path)
    before = _tree(tmp_path)
    assert cli.main([f"--dir={tmp_path}", "--check"]) == 0
    assert cli.main([f"--dir={tmp_path}"]) == 0
    assert _tree(tmp_path) == before


def test_repository_without_the_tag_or_without_modules(tmp_path: Path) -> None:
    """Otherwise repositories with flags or with WORKSPACE cannot see that their copy is old."""
    _repository(tmp_path)
    _flags_in_place_of_the_tag("common")(tmp_path)
    assert cli.main([f"--dir={tmp_path}", "--check"]) == 0
    (tmp_path / "MODULE.bazel").rename(tmp_path / "WORKSPACE")
    assert cli.main([f"--dir={tmp_path}", "--check"]) == 0
    (tmp_path / "dist_testing.bazelrc").write_text("")
    assert cli.main([f"--dir={tmp_path}", "--check"]) == 1
    assert cli.main([f"--dir={tmp_path}", "--update"]) == 1


def test_update_replaces_the_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise users edit it by hand, or lose a change that they made."""
    _repository(tmp_path)
    (tmp_path / "dist_testing.bazelrc").write_text("# mine\n")
    for options, said, flags in (
        ([], "left dist_testing.bazelrc: it differs", "# mine\n"),
        (["--update"], "init: replaced dist_testing.bazelrc\n", LIBRARY.flags),
    ):
        assert cli.main([f"--dir={tmp_path}", *options]) == 0
        assert said in capsys.readouterr().out
        assert (tmp_path / "dist_testing.bazelrc").read_text() == flags
