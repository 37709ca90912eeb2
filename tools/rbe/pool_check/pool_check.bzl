"""Targets that examine one pool of a remote executor."""

load("@rules_python//python:py_test.bzl", "py_test")

_PROBE = Label("//tools/rbe/pool_check:probe.py")
_FINDING = Label("//tools/rbe/pool_check:finding")

# Actions that run at once: more than one, to see several workers.
_WORKERS = 4

# A value that no worker has, for any property.
_NO_WORKER = "dist-testing-pool-check-no-worker"

# The prefix of a property of the test action alone, and the property to check if the caller names none.
_TEST_PREFIX = "test."
_USUAL_PROPERTY = "test.Pool"

def pool_check(*, name, gpus = 0, exec_properties = {}, tags = [], **kwargs):
    """Declares the tests that examine one pool.

    `name` is the test. `bazel run //tools/rbe/pool_check:table` runs the others after it: `name.grace` always reaches its
    timeout, `name.spread` measures how many actions run at once, `name.leave` leaves a process behind, `name.look` searches
    it, and `name.no_worker` has one test for each property, with a value that no worker has, so it must not run.

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
        deps = [_FINDING],
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
    for what, more in {
        "grace": {},
        "leave": {"shard_count": _WORKERS},
        "look": {"shard_count": _WORKERS},
        "spread": {"shard_count": _WORKERS},
    }.items():
        py_test(
            name = "{}.{}".format(name, what),
            size = "small",
            args = [what],
            exec_properties = exec_properties,
            **(common | more)
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
