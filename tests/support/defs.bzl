"""Macros for tests of the library itself: plain pytest, without the rules' runner."""

load("@rules_python//python:py_test.bzl", "py_test")

_MAIN = Label("//tests/support:pytest_main.py")

def pytest_test(*, name, srcs, size = "small", args = [], deps = [], **kwargs):
    """Declares a test that runs pytest on `srcs`.

    It fails if pytest collects nothing.

    Args:
        name: Name of the target.
        srcs: Files with the cases.
        size: Bazel's test size.
        args: More options of pytest.
        deps: Libraries that the cases import; pytest is added.
        **kwargs: Passed to `py_test` unchanged.
    """
    py_test(
        name = name,
        size = size,
        srcs = srcs + [_MAIN],
        args = args + ["$(rootpath {})".format(src) for src in srcs],
        main = _MAIN,
        deps = deps + [Label("//dist_testing/config:pytest")],
        **kwargs
    )

def pytest_tests(*, srcs, **kwargs):
    """Declares a pytest_test for each file, with the name of the file.

    Args:
        srcs: Files of this package, each with cases.
        **kwargs: Passed to each pytest_test.
    """
    for src in srcs:
        pytest_test(
            name = src.removesuffix(".py"),
            srcs = [src],
            **kwargs
        )

def pytest_groups(*, srcs, groups, **kwargs):
    """Declares a pytest_test for each group of files. All files of a group run in one process, which loads torch once.

    Args:
        srcs: Files of this package, each with cases.
        groups: Name of a target to the names of its files, without `test_` and `.py`.
        **kwargs: Passed to each pytest_test.
    """
    grouped = {name: ["test_{}.py".format(part) for part in parts] for name, parts in groups.items()}
    named = [src for files in grouped.values() for src in files]
    if sorted(named) != sorted(srcs):
        fail("each of {} must be in one group; the groups have {}".format(sorted(srcs), sorted(named)))
    for name, files in grouped.items():
        pytest_test(
            name = name,
            srcs = files,
            **kwargs
        )
