"""A macro of the team: the tests that several packages run."""

load("@dist_testing//dist_testing:defs.bzl", "dist_py_test")

def shapes_tests(*, name):
    """Declares the tests of shapes in the package that calls it.

    Args:
        name: Name of the suite.
    """
    dist_py_test(
        name = name,
        srcs = [Label(":test_shapes.py")],
        backends = [
            "gloo",
            "nccl",
        ],
        world_size = 2,
        deps = [Label(":base")],
    )
