"""The public names of torch's module, compared with ours."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
import unittest
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from dist_testing import compat
from dist_testing.compat import common_distributed, unknown
from dist_testing.compat.unknown import Unknown, torchs_own
from dist_testing.core.ground.errors import UsageError
from tests.compat.names_page import DIFFERENCES, PAGE, REPAIR, page, public_names


@pytest.fixture(scope="module")
def theirs() -> ModuleType:
    """torch's own module."""
    return torchs_own()


def test_every_public_name_of_the_installed_torch_exists_here(theirs: ModuleType) -> None:
    """If this fails, a test file that imports one of these names is not collected, or fails in the middle of a run."""
    missing = [name for name in public_names(theirs) if isinstance(getattr(common_distributed, name), Unknown)]
    assert not missing, f"torch {torch.__version__} has names that dist_testing.compat does not: {missing}"


def test_every_private_name_that_the_module_defines_exists_here(theirs: ModuleType) -> None:
    """If this fails, a test file that uses torch's private helpers is not collected. torch's own files do."""
    private = [name for name, value in vars(theirs).items() if name.startswith("_") and not name.startswith("__")]
    own = [name for name in private if getattr(getattr(theirs, name), "__module__", "") == theirs.__name__]
    assert "_dynamo_dist_per_rank_init" in own
    assert not [name for name in own if isinstance(getattr(common_distributed, name), Unknown)]


def test_the_page_of_names_is_true(theirs: ModuleType) -> None:
    """Users decide by the page whether they can change over."""
    written = PAGE.read_text(encoding="utf-8")
    version = f"torch {str(torch.__version__).partition('+')[0]} "
    if version not in written:
        pytest.skip(f"{PAGE} was written for another torch than {version}")
    differences = "\n".join(difflib.unified_diff(written.splitlines(), page().splitlines(), lineterm=""))
    assert not differences, f"{PAGE} does not match the modules. Write the page again: {REPAIR}\n{differences}"


def test_every_difference_belongs_to_a_name_on_the_page() -> None:
    """If this fails, a note about a name that no longer exists stays in the source and reaches no reader."""
    written = PAGE.read_text(encoding="utf-8")
    assert not [name for name in DIFFERENCES if f"\n| `{name}` | " not in written]


def test_the_module_lists_all_its_names() -> None:
    """If this fails, editors and `dir()` do not show a name."""
    names = dir(common_distributed)
    assert {"DynamoDistributedMultiProcTestCase", "MultiProcessTestCase", "tmp_dir"} <= set(names)
    assert all(hasattr(common_distributed, name) for name in common_distributed.__all__)


def test_classes_are_derived_from_each_other_as_in_torch(theirs: ModuleType) -> None:
    """If this fails, test files that use issubclass, or that combine classes, break."""
    classes = [name for name in public_names(theirs) if isinstance(getattr(theirs, name), type)]
    cases = [name for name in classes if issubclass(getattr(theirs, name), unittest.TestCase)]
    assert {
        "DistributedTestBase",
        "DynamoDistributedMultiProcTestCase",
        "DynamoDistributedSingleProcTestCase",
        "MultiProcContinuousTest",
        "MultiProcessTestCase",
        "MultiThreadedTestCase",
        "TestCase",
    } <= set(cases)
    for name in cases:
        bases = {base.__name__ for base in getattr(theirs, name).__mro__ if base.__name__ in cases}
        assert bases <= {base.__name__ for base in getattr(common_distributed, name).__mro__}, name


@pytest.mark.parametrize(
    "name", ["MultiProcessTestCase", "MultiThreadedTestCase", "MultiProcContinuousTest", "DistributedTestBase"]
)
def test_classes_have_the_members_of_torchs_classes(theirs: ModuleType, name: str) -> None:
    """If this fails, test files that override, call or read a member break.

    The members that a class replaces belong to torch's own way of running tests.
    """
    # The library refuses a class that has one of them (`test_torch_style.py`).
    elsewhere = {*getattr(common_distributed, name)._replaced}
    members = {
        member for base in getattr(theirs, name).__mro__ for member in vars(base) if base.__module__ == theirs.__name__
    }
    missing = {member for member in members - elsewhere if not member.startswith("__")} - set(
        dir(getattr(common_distributed, name))
    )
    assert not missing


def python(code: str) -> str:
    """Return what a fresh interpreter prints."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    env.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
    return subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True, env=env).stdout


def test_slow_modules_are_imported_only_when_used() -> None:
    """If this fails, every fresh rank spends a second on importing torch._dynamo."""
    code = """if True:
        import sys
        import torch.testing._internal.common_utils
        # The base class of all tests imports torch._dynamo in some versions of torch, such as 2.11.
        base = "torch._dynamo" in sys.modules
        import dist_testing.compat.common_distributed as ours
        before = "torch._dynamo" in sys.modules
        ours.DynamoDistributedSingleProcTestCase
        print(before == base, "torch._dynamo" in sys.modules)
    """
    assert python(code) == "True True\n"


def test_gpus_are_counted_without_cuda() -> None:
    """If this fails, forked ranks cannot use a GPU. torch's own module initialises the driver at import."""
    code = """if True:
        import torch

        def never(*_):
            raise SystemError("CUDA was initialised")

        torch.cuda._is_compiled = lambda: True
        torch.cuda._device_count_nvml = lambda: 2
        torch._C._cuda_getDeviceCount = torch.cuda._lazy_init = never

        import dist_testing.compat
        import dist_testing.compat.common_distributed as ours

        dist_testing.compat.install()
        import torch.testing._internal.common_fsdp
        print(ours.TEST_CUDA, ours.at_least_x_gpu(2), ours.at_least_x_gpu(3))
    """
    assert python(code) == "True True False\n"


def test_the_temporary_folder_is_always_the_current_one() -> None:
    """If this fails, the name stays None for a file that imported it early, as in torch."""
    assert common_distributed.tmp_dir is None
    common_distributed.initialize_temp_directories()
    folder = common_distributed.tmp_dir
    assert folder is not None
    assert Path(folder.name).is_dir()
    common_distributed.cleanup_temp_dir()
    assert common_distributed.tmp_dir is None


@pytest.fixture
def newer_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch with one name that the library does not know."""
    monkeypatch.setattr(unknown, "_torchs_names", lambda: {"brand_new": None})


@pytest.mark.usefixtures("newer_torch")
@pytest.mark.parametrize(
    "use",
    [
        lambda name: name(),
        lambda name: name.attribute,
        lambda name: exec("class Case(name): pass", {"name": name}),
        lambda name: bool(name),
        lambda name: list(name),
        lambda name: name["key"],
    ],
)
def test_a_name_that_only_torch_has_fails_when_it_is_used(use: object) -> None:
    """The rest of the file still works, and the error says what to do."""
    name = common_distributed.brand_new
    assert isinstance(name, Unknown)
    assert callable(use)
    with pytest.raises(UsageError, match=r"brand_new: torch .* has this name") as error:
        use(name)
    assert len(str(error.value).splitlines()) == 3
    assert "torchs_own().brand_new" in str(error.value)


def test_names_that_torchs_module_imports_are_the_same_objects(theirs: ModuleType) -> None:
    """If this fails, `from torch.testing._internal.common_distributed import os` gives a stand-in."""
    names = [name for name in unknown.imported_names() if hasattr(theirs, name)]
    assert {"os", "c10d", "nn", "find_free_port", "TEST_CUDA"} <= set(names)
    assert [] == [name for name in names if getattr(common_distributed, name) is not getattr(theirs, name)]


def test_a_name_of_a_package_that_is_missing_is_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, `dir()` with `getattr` on the module ends with the missing package's ImportError."""
    monkeypatch.setattr(unknown, "_torchs_names", lambda: {"missing": ("no_such_package.of_torch", "missing")})
    assert isinstance(common_distributed.missing, Unknown)


def test_a_name_that_does_not_exist_is_an_import_error() -> None:
    """If this fails, a misspelt name is imported without an error."""
    with pytest.raises(ImportError, match="cannot import name 'no_such_name'"):
        exec("from dist_testing.compat.common_distributed import no_such_name")
    assert not hasattr(common_distributed, "__wrapped__")


def test_tested_versions_are_recognised() -> None:
    """If this fails, users get no warning for a torch whose names may differ, or a wrong one."""
    assert all(map(compat.is_tested, ("2.10.0", "2.13.0+cpu", "2.15.0+cu132")))
    assert not any(map(compat.is_tested, ("2.9.1", "2.16.0a0+git123", "3.0", "x")))


def test_an_untested_torch_causes_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a user does not learn that an untested torch may be the cause, or is warned too often."""
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="3.1.0"))
    compat.warn_if_untested.cache_clear()
    with pytest.warns(RuntimeWarning, match=r"torch 3.1.0: dist_testing is tested with torch 2.10 to 2.15"):
        compat.warn_if_untested()
    # Here a warning is an error.
    compat.warn_if_untested()
    compat.warn_if_untested.cache_clear()


def test_names_of_other_releases_of_torch_are_here() -> None:
    """If this fails, a file that was written for an older or a newer torch cannot be imported."""
    older = {
        "EFA_PROBE_RESULT",
        "MultiProcContinousTest",
        "run_tests",
        "abc",
        "Dict",
        "List",
        "Optional",
        "Tuple",
        "Union",
    }
    newer = {"patch", "core_dumps_disabled", "requires_xccl", "skip_if_rocm_ver_atleast_multiprocess"}
    assert older | newer <= set(common_distributed.__all__)
    assert not [name for name in older | newer if isinstance(getattr(common_distributed, name), Unknown)]


@pytest.mark.parametrize("reason", ["variable", "build"])
def test_rocm_has_a_limit_and_a_world_size_of_its_own(reason: str) -> None:
    """If this fails, torch's suites start more ranks than a ROCm machine has GPUs, or wait longer than with torch."""
    code = f"""if True:
        import os
        import torch
        if {reason!r} == "variable":
            os.environ["PYTORCH_TEST_WITH_ROCM"] = "1"
        else:
            torch.version.hip = "6.2.41133"
        from dist_testing.compat import common_distributed as ours
        from dist_testing.compat.unknown import torchs_own
        for module in (ours, torchs_own()):
            print(module.DEFAULT_WORLD_SIZE, module.TIMEOUT_OVERRIDE["test_join_kwargs"])
    """
    ours, theirs = python(code).splitlines()
    assert ours == theirs == f"{min(4, max(2, torch.cuda.device_count()))} 200"
