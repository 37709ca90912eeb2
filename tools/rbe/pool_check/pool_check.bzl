"""Targets that examine one pool of a remote executor."""

load("@rules_python//python:py_test.bzl", "py_test")

_PROBE = Label("//tools/rbe/pool_check:probe.py")

# A value that no worker has, for any property.
_NO_WORKER = "dist-testing-pool-check-no-worker"

# The prefix of a property of the test action alone, and the property to check if the caller names none.
_TEST_PREFIX = "test."
_USUAL_PROPERTY = "test.Pool"

def pool_check(*, name, gpus = 0, exec_properties = {}, tags = [], **kwargs):
    """Declares the tests that examine one pool.

    `name` examines a worker. `name.no_worker` has one test for each property, with a value that no worker has: with an executor
    that uses the properties it waits for ever, and with any other one it fails.

    Args:
        name: Name of the test.
        gpus: GPUs that a worker of the pool must have.
        exec_properties: The properties that select the pool; keys with the prefix `test.`. Each is checked by itself; if
            there are none, `Pool` is checked.
        tags: Added to all tests.
        **kwargs: Passed to every `py_test` unchanged.
    """
    common = dict(
        srcs = [_PROBE],
        main = _PROBE,
        # The test is about the worker as it is now, so its result must not come from a cache.
        tags = tags + [
            "external",
            # Not a test of this code.
            "manual",
        ],
        **kwargs
    )
    py_test(
        name = name,
        size = "small",
        args = ["inside", "--gpus={}".format(gpus)],
        exec_properties = exec_properties,
        **common
    )
    no_worker = {
        "{}.no_worker.{}".format(name, key.removeprefix(_TEST_PREFIX).replace(":", "_")): key
        for key in exec_properties or [_USUAL_PROPERTY]
    }
    for target, key in no_worker.items():
        py_test(
            name = target,
            size = "small",
            args = ["no_worker"],
            exec_properties = exec_properties | {key: _NO_WORKER},
            **common
        )
    native.test_suite(
        name = name + ".no_worker",
        tags = ["manual"],
        tests = no_worker.keys(),
        visibility = kwargs.get("visibility"),
    )
