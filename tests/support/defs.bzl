"""Macros for tests of the library itself: plain pytest, without the rules' runner."""

load("@rules_python//python:py_test.bzl", "py_test")

# `bazel test //...` leaves these tests out, and `.ci/nightly` runs them, too.
NIGHTLY = ["manual", "nightly"]

_MAIN = Label("//tests/support:pytest_main.py")

def pytest_test(*, name, srcs, size = "small", args = [], deps = [], tags = [], timeout = "long", nightly = False, **kwargs):
    """Declares a test that runs pytest on `srcs`.

    It fails if pytest collects nothing.

    Args:
        name: Name of the target.
        srcs: Files with the cases.
        size: Bazel's test size.
        timeout: Bazel's test timeout. The default catches a hang, and no test that is slow on a busy machine.
        args: More options of pytest.
        deps: Libraries that the cases import; pytest is added.
        tags: Bazel's tags.
        nightly: Whether it runs at night only, or when it is named.
        **kwargs: Passed to `py_test` unchanged.
    """
    py_test(
        name = name,
        size = size,
        timeout = timeout,
        srcs = srcs + [_MAIN],
        args = args + ["$(rootpath {})".format(src) for src in srcs],
        main = _MAIN,
        tags = tags + (NIGHTLY if nightly else []),
        deps = deps + [Label("//dist_testing/config:pytest")],
        **kwargs
    )

def pytest_tests(*, srcs, nightly = [], **kwargs):
    """Declares a pytest_test for each file, with the name of the file.

    Args:
        srcs: Files of this package, each with cases.
        nightly: Names of tests that run at night only.
        **kwargs: Passed to each pytest_test.
    """
    names = [src.removesuffix(".py") for src in srcs]
    _check_nightly(nightly, names)
    for name in names:
        pytest_test(
            name = name,
            srcs = [name + ".py"],
            nightly = name in nightly,
            **kwargs
        )

def pytest_groups(*, srcs, groups, nightly = [], **kwargs):
    """Declares a pytest_test for each group of files. All files of a group run in one process, which loads torch once.

    Args:
        srcs: Files of this package, each with cases.
        groups: Name of a target to the names of its files, without `test_` and `.py`.
        nightly: Names of targets that run at night only.
        **kwargs: Passed to each pytest_test.
    """
    grouped = {name: ["test_{}.py".format(part) for part in parts] for name, parts in groups.items()}
    named = [src for files in grouped.values() for src in files]
    if sorted(named) != sorted(srcs):
        fail("each of {} must be in one group; the groups have {}".format(sorted(srcs), sorted(named)))
    _check_nightly(nightly, grouped.keys())
    for name, files in grouped.items():
        pytest_test(
            name = name,
            srcs = files,
            nightly = name in nightly,
            **kwargs
        )

def _check_nightly(nightly, names):
    unknown = [name for name in nightly if name not in names]
    if unknown:
        fail("nightly names {}; the tests are {}".format(unknown, sorted(names)))
