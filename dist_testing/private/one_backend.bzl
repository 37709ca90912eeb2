"""The targets of one backend of a dist_py_test."""

load("@dist_testing_executors//:executors.bzl", "EXECUTORS")
load("@rules_python//python:py_test.bzl", "py_test")
load("//dist_testing/private:executors.bzl", "test_exec_properties")
load("//dist_testing/private:gpus.bzl", "GPU_PROMISE", "gpu_compatibility", "inherited_variables", "pools_check")
load("//dist_testing/private:labels.bzl", "add_labels")
load("//dist_testing/private:libraries.bzl", "chosen_libraries")
load("//dist_testing/private:tags.bzl", "dist_tags")
load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

# Main program of every test: starts pytest with the library's plugin on the files of the spec.
_MAIN = Label("//dist_testing/main:dist_test_main.py")
_LIBRARY = Label("//dist_testing")

def one_backend(
        *,
        test,
        sources,
        tags,
        deps,
        data,
        env,
        env_inherit,
        args,
        exec_properties,
        target_compatible_with,
        test_rule,
        **kwargs):
    """Declares the test of one backend.

    Args:
        test: Struct: the name, the label and what the spec says.
        sources: Label of the library with the sources.
        tags: As in dist_py_test; so are all other arguments.
        deps: See tags.
        data: See tags.
        env: With the variables that the runner reads.
        env_inherit: See tags.
        args: See tags.
        exec_properties: See tags.
        target_compatible_with: See tags.
        test_rule: See tags.
        **kwargs: More attributes of py_test.
    """
    vendor = test.backend["vendor"] if test.gpus else ""
    if test.gpus:
        env_inherit = env_inherit + inherited_variables(vendor)
        data = data + [GPU_PROMISE] + pools_check(test.target, vendor, test.gpus, test.gpu_archs, EXECUTORS["pools"])
    if test_rule == None:
        test_rule = py_test

        # Without modules the library's repository is called dist_testing, and Python would import an `__init__.py` that
        # Bazel adds to its folder instead of the library.
        kwargs = kwargs | {"legacy_create_init": 0}
    test_rule(
        name = test.name,
        # Not the sources of the call: the rule compiles each of its sources in an action with the tags of the target, and
        # the tests of two backends would write one file by two actions. This file is in another package, so it compiles none.
        srcs = [_MAIN],
        # Only here: a program that a person starts runs one world (spec.bzl).
        args = (["--dist-jobs={}".format(test.jobs)] if test.jobs > 1 else []) + args,
        data = data + [":{}.spec.txt".format(test.name)],
        env = env,
        env_inherit = env_inherit,
        exec_properties = test_exec_properties(EXECUTORS, vendor, test.gpus, test.gpu_archs) | exec_properties,
        main = _MAIN,
        shard_count = test.shard_count,
        tags = dist_tags(
            backend = test.backend,
            gpu_archs = test.gpu_archs,
            gpus = test.gpus,
            isolation = test.isolation,
            jobs = test.jobs,
            nodes = test.nodes,
            user_tags = tags,
            world_sizes = test.world_sizes,
        ),
        target_compatible_with = target_compatible_with +
                                 gpu_compatibility(vendor, test.gpus, test.gpu_archs, EXECUTORS["pools"]),
        deps = chosen_libraries(
            name = test.name,
            # A select() hides its labels, and Bazel refuses one that is there twice; the sources bring them.
            deps = add_labels(deps if type(deps) == "list" else [], [sources] + test.backend["deps"] + [_LIBRARY]),
            lock = test.lock,
            torch = test.torch,
        ),
        **kwargs
    )
