"""The macro dist_py_test."""

load("@rules_python//python:py_test.bzl", "py_test")
load("//backends:table.bzl", "BACKENDS")
load("//dist_testing/private:gpus.bzl", "gpu_compatibility")
load("//dist_testing/private:labels.bzl", "user_label")
load("//dist_testing/private:spec.bzl", "dist_test_spec")
load("//dist_testing/private:tags.bzl", "dist_tags")
load("//dist_testing/private:validation.bzl", "attributes_problems", "backends_problems", "env_problems", "gpu_total_problems", "gpus_per_rank_problems", "isolation_problems", "srcs_problems", "tags_problems", "time_problems", "world_size_problems")

# Runs the cases; starts pytest with the library's plugin on the files of the spec.
_MAIN = Label("//dist_testing:bazel_main.py")
_LIBRARY = Label("//dist_testing")

def _for_backend(value, backend, default = None):
    """Returns the part of an argument that is for one backend."""
    return value.get(backend, default) if type(value) == "dict" else value

def _fail_on(target, problems):
    if problems:
        fail("dist_py_test {}: {}".format(target, "\nand ".join(problems)))

def dist_py_test(
        *,
        name,
        srcs,
        backends,
        world_size,
        gpus_per_rank = None,
        isolation = "fork",
        size = None,
        timeout = None,
        tags = [],
        deps = [],
        data = [],
        env = {},
        args = [],
        target_compatible_with = [],
        visibility = None,
        **kwargs):
    """Declares tests whose cases run on every rank of a small world, one target per backend.

    Creates `<name>_<backend>` for every backend, and the suite `<name>` of them all, which runs only
    when it is asked for by name. A target fails if no case is found in `srcs`. Where a target needs
    more GPUs than the machine has, Bazel skips it (//dist_testing/config:gpus).

    Refuses every value that cannot be what was meant, and says why.

    Args:
        name: Name of the suite, and first part of the targets' names.
        srcs: Python files with the cases. Code that has none goes in `deps`.
        backends: Names of backends declared in //backends, each once.
        world_size: Ranks per case, 1 to 1024. A list runs each case once per entry, in one target. A
            dict gives either for each backend.
        gpus_per_rank: GPUs each rank owns alone, or a dict by backend. Default: the backend's own.
        isolation: How the ranks of a case are made. "fork": fresh processes for each case, forked from
            a clean one that has the test's imports; "pool": kept for the tests of a class or module;
            "spawn": fresh interpreters.
        size: Bazel's test size. Default: Bazel's, which is "medium".
        timeout: Bazel's named timeout. Default: Bazel's for the size.
        tags: Added to the tags that follow from the other arguments. A `cpu:<n>` replaces ours, which
            is one CPU per rank of the largest world.
        deps: Libraries that the cases import. The library itself and torch are there already.
        data: Files that the cases read.
        env: Environment of the tests. Not the variables that the library or Bazel sets.
        args: Arguments of the test program: options of pytest.
        target_compatible_with: Added to the condition that follows from the GPUs.
        visibility: Of the targets and the suite.
        **kwargs: Passed to `py_test` unchanged; a name that it does not know fails there.
    """
    suite = user_label(native.package_relative_label(":" + name))
    problems = backends_problems(backends, BACKENDS)
    _fail_on(suite, problems)
    problems = world_size_problems(world_size, backends)
    problems += gpus_per_rank_problems(gpus_per_rank, backends, BACKENDS)
    problems += srcs_problems(srcs)
    problems += isolation_problems(isolation)
    problems += time_problems(size, timeout)
    problems += tags_problems(tags)
    problems += env_problems(env)
    problems += attributes_problems(kwargs)
    _fail_on(suite, problems)

    tests = []
    for backend_name in backends:
        backend = BACKENDS[backend_name]
        world_sizes = _for_backend(world_size, backend_name)
        world_sizes = world_sizes if type(world_sizes) == "list" else [world_sizes]
        rank_gpus = _for_backend(gpus_per_rank, backend_name)
        rank_gpus = backend["gpus_per_rank"] if rank_gpus == None else rank_gpus
        _fail_on(suite, gpu_total_problems(backend_name, max(world_sizes), rank_gpus))

        test = "{}_{}".format(name, backend_name)
        tests.append(":" + test)
        _one_backend(
            name = test,
            srcs = srcs,
            args = args,
            backend = backend,
            data = data,
            deps = deps,
            env = env,
            gpus_per_rank = rank_gpus,
            isolation = isolation,
            size = size,
            tags = tags,
            target_compatible_with = target_compatible_with,
            timeout = timeout,
            visibility = visibility,
            world_sizes = world_sizes,
            **kwargs
        )

    native.test_suite(
        name = name,
        tags = ["manual"],
        tests = tests,
        visibility = visibility,
    )

def _one_backend(*, name, srcs, backend, world_sizes, gpus_per_rank, isolation, tags, deps, data, env, target_compatible_with, **kwargs):
    spec = name + ".spec"
    gpus = max(world_sizes) * gpus_per_rank
    dist_test_spec(
        name = spec,
        testonly = True,
        srcs = srcs,
        backend = json.encode(backend),
        gpus_per_rank = gpus_per_rank,
        isolation = isolation,
        tags = ["manual"],
        target = user_label(native.package_relative_label(":" + name)),
        visibility = ["//visibility:private"],
        world_sizes = world_sizes,
    )
    py_test(
        name = name,
        srcs = srcs + [_MAIN],
        data = data + [":" + spec],
        env = env | {"DIST_TESTING_SPEC": "$(rlocationpath :{})".format(spec)},
        main = _MAIN,
        tags = dist_tags(
            backend = backend,
            gpus = gpus,
            user_tags = tags,
            world_sizes = world_sizes,
        ),
        target_compatible_with = target_compatible_with + gpu_compatibility(backend["vendor"], gpus),
        deps = deps + [_LIBRARY],
        **kwargs
    )
