"""Targets that look at one pool of a remote executor."""

load("@rules_python//python:py_test.bzl", "py_test")

_PROBE = Label("//tools/rbe/pool_check:probe.py")
_FINDING = Label("//tools/rbe/pool_check:finding")

# How many actions look at the pool at once: more than one, so that several workers are seen.
_WORKERS = 4

# No worker has it, of any property.
_NOBODY = "dist-testing-pool-check-nobody"

# Of a property that belongs to the test's action alone, and what is asked about where no property is named.
_TEST_PREFIX = "test."
_USUAL_PROPERTY = "test.Pool"

def pool_check(*, name, gpus = 0, exec_properties = {}, tags = [], **kwargs):
    """Declares the tests that look at one pool.

    `name` is the test. The others are `bazel run //tools/rbe/pool_check:table`'s, and wait for it: `name.grace` always
    runs out of time, `name.spread` measures how many actions run at once, `name.leave` leaves a process behind,
    `name.look` looks for it, `name.nobody` is one test for each property that must not run: no worker has its value.

    Args:
        name: Name of the test.
        gpus: GPUs that a worker of the pool must have.
        exec_properties: How the executor finds the pool; keys with the prefix `test.`. That it looks at them is checked
            one by one; without any, that it looks at `Pool`.
        tags: Added to all of them.
        **kwargs: Passed to every `py_test` unchanged.
    """
    common = dict(
        srcs = [_PROBE],
        main = _PROBE,
        deps = [_FINDING],
        # It is the worker of this very minute that is asked about.
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
    nobody = {
        "{}.nobody.{}".format(name, key.removeprefix(_TEST_PREFIX).replace(":", "_")): key
        for key in exec_properties or [_USUAL_PROPERTY]
    }
    for target, key in nobody.items():
        py_test(
            name = target,
            size = "small",
            args = ["nobody"],
            exec_properties = exec_properties | {key: _NOBODY},
            **common
        )
    native.test_suite(
        name = name + ".nobody",
        tags = ["manual"],
        tests = nobody.keys(),
        visibility = kwargs.get("visibility"),
    )
