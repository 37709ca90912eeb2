"""The macro with_lock."""

load("@dist_testing_wheels//:locks.bzl", "LOCKS")
load("//dist_testing/private:problems.bzl", "choice_problems", "fail_on")  # buildifier: disable=bzl-visibility
load(":transitioned.bzl", "transitioned_library")
load(":visibility.bzl", "WHEELS")

visibility(WHEELS)

_LOCK = str(Label("//wheels:lock"))

def _choose_impl(_settings, attr):
    return {_LOCK: attr.lock}

_choose = transition(
    implementation = _choose_impl,
    inputs = [],
    outputs = [_LOCK],
)

_with_lock = transitioned_library(
    doc = "A Python library with the wheels of one lock.",
    attrs = {"lock": attr.string(mandatory = True)},
    cfg = _choose,
)

def with_lock(*, name, library, lock, **kwargs):
    """Declares a Python library with the wheels of one lock, whatever the command line says.

    A test depends on it alone: a package beside it would come from the lock of the command line, and two torches in one
    process do not work. `dist_py_test` has the argument `lock` instead.

    Args:
        name: Name of the target.
        library: The library; a `py_library` with `deps` collects several.
        lock: Name of the lock, in every hub that has it.
        **kwargs: Attributes that every rule has, such as `testonly` and `visibility`.
    """
    fail_on(
        "with_lock //{}:{}".format(native.package_name(), name),
        choice_problems("lock", lock, LOCKS, "It is the name of a lock that a MODULE.bazel declares for a hub (docs/wheels.md)."),
    )
    _with_lock(
        name = name,
        library = library,
        lock = lock,
        **kwargs
    )
