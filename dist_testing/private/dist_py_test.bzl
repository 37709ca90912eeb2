"""The macro dist_py_test."""

load("@dist_testing_executors//:executors.bzl", "EXECUTORS")
load("@rules_python//python:py_test.bzl", "py_test")
load("//backends:table.bzl", "BACKENDS")
load("//dist_testing/private:executors.bzl", "test_exec_properties")
load("//dist_testing/private:gpus.bzl", "gpu_compatibility", "gpus_of_world", "inherited_variables", "pools_check")
load("//dist_testing/private:labels.bzl", "has_label", "user_label")
load("//dist_testing/private:problems.bzl", "fail_on")
load("//dist_testing/private:run.bzl", "dist_test_run")
load("//dist_testing/private:spec.bzl", "dist_test_spec", "spec_variable")
load("//dist_testing/private:tags.bzl", "dist_tags")
load("//dist_testing/private:validate_environment.bzl", "env_inherit_problems", "env_problems", "spec_problems")
load(
    "//dist_testing/private:validate_names.bzl",
    "collision_problems",
    "kind_of_existing",
    "name_problems",
    "srcs_problems",
    "timings_problems",
    "wildcard_problems",
)
load(
    "//dist_testing/private:validate_targets.bzl",
    "attributes_problems",
    "exec_properties_problems",
    "lists_problems",
    "shard_count_problems",
    "tags_problems",
    "time_problems",
)
load(
    "//dist_testing/private:validate_worlds.bzl",
    "backends_problems",
    "gpu_total_problems",
    "gpus_per_rank_problems",
    "isolation_problems",
    "nodes_problems",
    "ranks_per_gpu_problems",
    "world_size_problems",
)

# Runs the cases; starts pytest with the library's plugin on the files of the spec.
_MAIN = Label("//dist_testing:bazel_main.py")
_LIBRARY = Label("//dist_testing")

# What the result of a test with GPUs depends on, and of no other.
_GPU_PROMISE = Label("//dist_testing/config:gpu_promise")

def _for_backend(value, backend, default):
    """Returns the part of an argument that is for one backend."""
    value = value.get(backend) if type(value) == "dict" else value
    return default if value == None else value

def dist_py_test(
        *,
        name,
        srcs,
        backends,
        world_size,
        gpus_per_rank = None,
        ranks_per_gpu = None,
        isolation = None,
        nodes = 1,
        shard_count = None,
        timings = None,
        size = None,
        timeout = None,
        tags = [],
        deps = [],
        data = [],
        env = {},
        env_inherit = [],
        args = [],
        exec_properties = {},
        target_compatible_with = [],
        visibility = None,
        **kwargs):
    """Declares tests whose cases run on every rank of a small world, one target per backend.

    Creates `<name>_<backend>` for every backend, and the suite `<name>` of them all, which runs only
    when it is asked for by name. `bazel run <name>_<backend>.run -- --rank=1` runs the same test with
    that rank on the terminal. A target fails if no case is found in `srcs`. Where a target needs more
    GPUs than the machine has, Bazel skips it (//dist_testing/config:gpus).

    Refuses every value that cannot be what was meant, and says why.

    Args:
        name: Name of the suite, and first part of the targets' names.
        srcs: Python files with the cases: the files themselves, not targets that stand for some. Code that has no
            cases goes in `deps`.
        backends: Names of backends that `@dist_testing//backends` declares, each once.
        world_size: Ranks per case, 1 to 1024. A list runs each case once per entry, in one target. A
            dict gives either for each backend.
        gpus_per_rank: GPUs each rank owns alone, or a dict by backend. Default: the backend's own.
        ranks_per_gpu: Ranks that share a GPU, or a dict by backend. Each may then allocate its part of the
            memory. Only for backends that can, such as cuda_gloo. Default: 1, each has its own.
        isolation: How the ranks of a case are made, or a dict by backend. "fork": fresh processes for
            each case, forked from a clean one that has the test's imports; "pool": kept for the tests of
            a class or module; "spawn": fresh interpreters; "thread": threads of one process. Default:
            the backend's own, which is "thread" for threaded and "fork" for the others.
        nodes: Machines that the ranks are spread over. For now 1.
        shard_count: Shards that whole cases are dealt to, 1 to 50, or a dict by backend. Default: one.
        timings: Label of one file that says how long cases take, by which shards are balanced (docs/sharding.md).
            Default: cases are dealt in turn.
        size: Bazel's test size. Default: Bazel's, which is "medium".
        timeout: Bazel's named timeout. Default: Bazel's for the size.
        tags: Added to the tags that follow from the other arguments. A `cpu:<n>` or `resources:cpu:<n>`
            replaces ours, which is one CPU per rank of the largest world.
        deps: Libraries that the cases import. The library itself and torch are there already.
        data: Files that the cases read.
        env: Environment of the tests. Not the variables that the library or Bazel sets.
        env_inherit: Names of variables that tests have from whoever starts Bazel. Not those that the library or
            Bazel sets.
        args: Arguments of the test program: options of pytest.
        exec_properties: For remote executors; keys begin with `test.`. Replaces what follows from the
            pools declared in MODULE.bazel, key by key.
        target_compatible_with: Added to the condition that follows from the GPUs. A target that it excludes is
            skipped, also where no pool of a remote executor has its GPUs.
        visibility: Of the targets and the suite.
        **kwargs: Passed to `py_test` unchanged; a name that it does not know fails there.
    """
    fail_on("dist_py_test in //" + native.package_name(), name_problems(name))
    suite = user_label(native.package_relative_label(":" + name))
    problems = wildcard_problems(name)
    problems += backends_problems(backends, BACKENDS)
    fail_on("dist_py_test " + suite, problems)
    problems = world_size_problems(world_size, backends)
    problems += gpus_per_rank_problems(gpus_per_rank, backends, BACKENDS)
    problems += ranks_per_gpu_problems(ranks_per_gpu, backends, BACKENDS)
    problems += isolation_problems(isolation, backends, BACKENDS)
    problems += nodes_problems(nodes)
    problems += shard_count_problems(shard_count, backends)
    problems += srcs_problems(srcs)
    problems += timings_problems(timings)
    problems += lists_problems({
        "args": args,
        "data": data,
        "deps": deps,
        "env_inherit": env_inherit,
        "target_compatible_with": target_compatible_with,
    })
    problems += time_problems(size, timeout)
    problems += tags_problems(tags)
    problems += env_problems(env)
    problems += env_inherit_problems(env_inherit)
    problems += exec_properties_problems(exec_properties)
    problems += attributes_problems(kwargs)
    spec = name + ".spec"
    names = {name: "the suite of all backends", spec: "what queries read"}
    timings_group = name + ".timings" if timings and type(data) == "select" else None
    if timings_group:
        names[timings_group] = "the file of timings"
    for backend in backends:
        test = "{}_{}".format(name, backend)
        names |= {
            test: "the tests with backend \"{}\"".format(backend),
            test + ".run": "the program to debug them with",
        }
    problems += collision_problems(names, kind_of_existing)
    fail_on("dist_py_test " + suite, problems)

    tests = []
    for backend in backends:
        world_sizes = _for_backend(world_size, backend, None)
        world_sizes = world_sizes if type(world_sizes) == "list" else [world_sizes]
        rank_gpus = _for_backend(gpus_per_rank, backend, BACKENDS[backend]["gpus_per_rank"])
        gpu_ranks = _for_backend(ranks_per_gpu, backend, 1)
        fail_on("dist_py_test " + suite, gpu_total_problems(backend, max(world_sizes), rank_gpus, gpu_ranks))
        test = "{}_{}".format(name, backend)
        tests.append(struct(
            name = test,
            backend = BACKENDS[backend],
            gpus = gpus_of_world(max(world_sizes), rank_gpus, gpu_ranks),
            gpus_per_rank = rank_gpus,
            isolation = _for_backend(isolation, backend, BACKENDS[backend]["isolations"][0]),
            ranks_per_gpu = gpu_ranks,
            shard_count = _for_backend(shard_count, backend, None),
            target = "{}_{}".format(suite, backend),
            world_sizes = world_sizes,
        ))

    src_labels = [user_label(native.package_relative_label(src)) for src in srcs]
    spec_texts = [spec_variable(test, nodes = nodes, srcs = src_labels) for test in tests]
    for spec_text in spec_texts:
        fail_on("dist_py_test " + suite, spec_problems(spec_text, srcs))

    dist_test_spec(
        name = spec,
        testonly = True,
        backends = [test.backend["name"] for test in tests],
        gpus = [test.gpus for test in tests],
        gpus_per_rank = [test.gpus_per_rank for test in tests],
        isolations = [test.isolation for test in tests],
        nodes = nodes,
        ranks_per_gpu = [test.ranks_per_gpu for test in tests],
        tags = ["manual"],
        targets = [test.target for test in tests],
        visibility = visibility,
        world_sizes = [json.encode(test.world_sizes) for test in tests],
    )
    if timings_group:
        # Bazel refuses a label that is there twice, and what is in a select() nobody knows yet.
        native.filegroup(
            name = timings_group,
            testonly = True,
            srcs = [timings],
            tags = ["manual"],
            visibility = ["//visibility:private"],
        )
        timings = ":" + timings_group
    if timings:
        env = env | {"DIST_TESTING_TIMINGS": "$(rlocationpath {})".format(timings)}
        data = data if type(data) == "list" and has_label(data, timings, native.package_relative_label) else data + [timings]
    for test, spec_text in zip(tests, spec_texts):
        _one_backend(
            test = test,
            srcs = srcs,
            args = args,
            data = data,
            deps = deps,
            env = env | {"DIST_TESTING_SPEC": spec_text},
            env_inherit = env_inherit,
            exec_properties = exec_properties,
            size = size,
            tags = tags,
            target_compatible_with = target_compatible_with,
            timeout = timeout,
            visibility = visibility,
            **kwargs
        )

    native.test_suite(
        name = name,
        tags = ["manual"],
        tests = [":" + test.name for test in tests],
        visibility = visibility,
    )

def _one_backend(
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
        **kwargs):
    vendor = test.backend["vendor"] if test.gpus else ""
    if test.gpus:
        env_inherit = env_inherit + inherited_variables(vendor)
        data = data + [_GPU_PROMISE] + pools_check(test.target, vendor, test.gpus, EXECUTORS["pools"])
        env = env | {"DIST_TESTING_GPU_PROMISE": "$(rlocationpath {})".format(_GPU_PROMISE)}
    py_test(
        name = test.name,
        srcs = srcs + [_MAIN],
        args = args,
        data = data,
        env = env,
        env_inherit = env_inherit,
        exec_properties = test_exec_properties(EXECUTORS, vendor, test.gpus) | exec_properties,
        # Where the library's repository is called dist_testing, as without modules, an `__init__.py` that
        # Bazel adds to its folder would be imported in the library's place.
        legacy_create_init = 0,
        main = _MAIN,
        shard_count = test.shard_count,
        tags = dist_tags(
            backend = test.backend,
            gpus = test.gpus,
            user_tags = tags,
            world_sizes = test.world_sizes,
        ),
        target_compatible_with = target_compatible_with + gpu_compatibility(vendor, test.gpus, EXECUTORS["pools"]),
        deps = deps + [_LIBRARY],
        **kwargs
    )
    dist_test_run(
        name = test.name + ".run",
        testonly = True,
        # Live, because somebody is looking.
        args = ["-s"] + args,
        data = srcs + data if args else [],
        tags = ["manual"],
        target = test.target,
        test = ":" + test.name,
        visibility = ["//visibility:private"],
    )
