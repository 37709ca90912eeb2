"""The targets of one backend of a dist_py_test."""

load("@dist_testing_executors//:executors.bzl", "EXECUTORS")
load("@rules_python//python:py_test.bzl", "py_test")
load("//dist_testing/private:executors.bzl", "test_exec_properties")
load("//dist_testing/private:gpus.bzl", "gpu_compatibility", "inherited_variables", "pools_check")
load("//dist_testing/private:labels.bzl", "add_labels")
load("//dist_testing/private:libraries.bzl", "chosen_libraries")
load("//dist_testing/private:run.bzl", "dist_test_run")
load("//dist_testing/private:tags.bzl", "dist_tags")

# Main program of every test: starts pytest with the library's plugin on the files of the spec.
_MAIN = Label("//dist_testing:bazel_main.py")
_LIBRARY = Label("//dist_testing")

# The results of tests with GPUs depend on it, and no other results.
_GPU_PROMISE = Label("//dist_testing/config:gpu_promise")

def one_backend(
        *,
        test,
        srcs,
        tags,
        deps,
        data,
        env,
        env_inherit,
        args,
        exec_properties,
        target_compatible_with,
        is_program,
        **kwargs):
    """Declares the test of one backend, and the program to debug it with.

    Args:
        test: Struct: the name, the label and what the spec says.
        srcs: As in dist_py_test; so are all other arguments.
        tags: See srcs.
        deps: See srcs.
        data: See srcs.
        env: With the variable of the spec.
        env_inherit: See srcs.
        args: See srcs.
        exec_properties: See srcs.
        target_compatible_with: See srcs.
        is_program: Whether the arguments are those of a program, and not of pytest.
        **kwargs: More attributes of py_test.
    """
    vendor = test.backend["vendor"] if test.gpus else ""
    if test.gpus:
        env_inherit = env_inherit + inherited_variables(vendor)
        data = data + [_GPU_PROMISE] + pools_check(test.target, vendor, test.gpus, test.gpu_archs, EXECUTORS["pools"])
        env = env | {"DIST_TESTING_GPU_PROMISE": "$(rlocationpath {})".format(_GPU_PROMISE)}
    py_test(
        name = test.name,
        srcs = srcs + [_MAIN],
        # Not in the program to debug it, which runs one world.
        args = (["--dist-jobs={}".format(test.jobs)] if test.jobs > 1 else []) + args,
        data = data,
        env = env,
        env_inherit = env_inherit,
        exec_properties = test_exec_properties(EXECUTORS, vendor, test.gpus, test.gpu_archs) | exec_properties,
        # Without modules the library's repository is called dist_testing, and Python would import an `__init__.py` that
        # Bazel adds to its folder instead of the library.
        legacy_create_init = 0,
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
            deps = add_labels(deps, test.backend["deps"] + [_LIBRARY]),
            lock = test.lock,
            torch = test.torch,
        ),
        **kwargs
    )
    dist_test_run(
        name = test.name + ".run",
        testonly = True,
        # Live output, because a person reads it; that of a program is always live.
        args = args if is_program else ["-s"] + args,
        # What $(location) and $(VARIABLE) in `args` may name. Without args, no second edge to each of them.
        data = srcs + data if args else [],
        deps = deps if args else [],
        is_program = is_program,
        tags = ["manual"],
        target = test.target,
        test = ":" + test.name,
        toolchains = kwargs.get("toolchains"),
        visibility = ["//visibility:private"],
    )
