"""The macro dist_py_test."""

load("//backends:table.bzl", "BACKENDS")
load("//dist_testing/private:backends.bzl", "resolve_backends")
load("//dist_testing/private:gpu_archs.bzl", "gpu_archs_problems")
load("//dist_testing/private:gpus.bzl", "GPU_PROMISE", "gpus_of_world", "promise_variables")
load("//dist_testing/private:labels.bzl", "add_labels", "user_label")
load("//dist_testing/private:one_backend.bzl", "one_backend")
load("//dist_testing/private:problems.bzl", "by_backend", "fail_on")
load("//dist_testing/private:select_check.bzl", "select_check")
load("//dist_testing/private:sources.bzl", "expands_labels", "test_sources")
load("//dist_testing/private:spec.bzl", "dist_test_spec", "spec_variable")
load("//dist_testing/private:validate_environment.bzl", "env_inherit_problems", "env_problems", "spec_problems")
load("//dist_testing/private:validate_jobs.bzl", "jobs_problems")
load("//dist_testing/private:validate_names.bzl", "name_problems", "srcs_problems", "timings_problems", "wildcard_problems")
load("//dist_testing/private:validate_program.bzl", "expected_exits_problems", "program_backend_problems", "program_problems")
load(
    "//dist_testing/private:validate_targets.bzl",
    "attributes_problems",
    "exec_properties_problems",
    "lists_problems",
    "packages_problems",
    "settings_problems",
    "tags_problems",
)
load(
    "//dist_testing/private:validate_worlds.bzl",
    "gpu_total_problems",
    "gpus_per_rank_problems",
    "isolation_problems",
    "isolations_of",
    "nodes_problems",
    "ranks_per_gpu_problems",
    "world_size_problems",
)
load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

def _for_backend(value, backend, default):
    """Selects the part of an argument, which may be a dict, that applies to one backend; else the default."""
    value = value.get(backend) if type(value) == "dict" else value
    return default if value == None else value

def _or_default(value, default):
    return default if value == None else value

def dist_py_test(
        *,
        name,
        srcs,
        backends,
        world_size,
        program = None,
        expected_exits = None,
        gpus_per_rank = None,
        ranks_per_gpu = None,
        gpu_archs = None,
        isolation = None,
        nodes = None,
        settings = None,
        shard_count = None,
        jobs = None,
        timings = None,
        lock = None,
        torch = None,
        size = None,
        timeout = None,
        tags = None,
        deps = None,
        data = None,
        env = None,
        env_inherit = None,
        args = None,
        exec_properties = None,
        target_compatible_with = None,
        visibility = None,
        test_rule = None,
        **kwargs):
    """Declares tests whose cases run on every rank of a small world, one target per backend.

    Creates `<name>_<backend>` for every backend, and the suite `<name>` of them all, which runs only when a command
    names it. The built program `bazel-bin/<package>/<name>_<backend>` runs without Bazel; `--rank=1` gives that rank the
    terminal. The tests share the libraries `<name>.library` and `<name>.sources`, and `<name>.spec`, which queries read.

    A target fails if `srcs` have no case. Bazel skips a target that needs more GPUs than the machine has
    (//dist_testing/config:gpus).

    Refuses impossible values, and says why. None means the default of every argument.

    Args:
        name: Name of the suite, and first part of the targets' names.
        srcs: Python files with the cases: the files themselves, not targets that stand for several. Code without
            cases belongs in `deps`.
        backends: The backends, each once: names of backends that dist_testing declares, and values of
            declare_backend (docs/backends.md). Arguments that may be a dict by backend have its name as the key.
        world_size: Ranks per case, 1 to 1024. A list runs each case once per entry, in one target. A
            dict gives either for each backend.
        program: Label of one of `srcs`: a script that every rank runs as its main program, instead of tests (docs/programs.md).
            The other `srcs` are modules that it imports, and `args` are its arguments.
        expected_exits: For a program: a dict from ranks to the exit codes that their processes must end with; a negative code
            is a signal. Default: all end with 0.
        gpus_per_rank: GPUs that each rank owns alone, or a dict by backend. Default: the backend's own.
        ranks_per_gpu: Ranks that share a GPU, or a dict by backend. Each may allocate its part of the
            memory. Only for backends with `shares_gpus`, such as cuda_gloo and nccl. Default: 1, so each rank has its own.
        gpu_archs: Architectures of GPUs that the tests can run on, such as ["sm_90", "sm_100"] or ["gfx942"], or a dict by
            backend. All GPUs of a world have one of them. Default: any.
        isolation: How the library makes the ranks of a case, or a dict by backend. "fork": fresh processes for
            each case, forked from a clean fork server that has the test's imports; "pool": processes that the tests of
            a class or module reuse; "spawn": fresh interpreters; "thread": threads of one process. Default:
            "thread" for a backend whose groups live inside one process, "fork" for every other.
        nodes: Simulated nodes that the ranks are spread over, each with a network of its own (docs/faults.md). Only for
            backends whose ranks are processes without GPUs. Default: 1, the machine itself.
        settings: What the tests ask of add-ons of other packages: a dict from their names to values (docs/add_ons.md).
        shard_count: Number of shards that share the cases, 1 to 50, or a dict by backend. Default: one shard.
        jobs: Number of worlds that run side by side in one target, or shard, 1 to 64, or a dict by backend. Only for backends
            without GPUs (docs/side_by_side.md). Default: 1.
        timings: Label of one file with the durations of cases, by which shards are balanced (docs/side_by_side.md).
            Default: shards get the cases in turn.
        lock: Name of the lock (docs/wheels.md) that all packages of the test come from, or a dict by backend. Default: the
            lock of the command line.
        torch: Label of the torch that the library uses in this test, or a dict by backend; `deps` name the same one. Default:
            the flag //dist_testing/config:torch.
        size: Bazel's test size. Default: Bazel's, which is "medium".
        timeout: Bazel's named timeout. Default: Bazel's for the size.
        tags: More tags, besides those that follow from the other arguments. A `cpu:<n>` or `resources:cpu:<n>` replaces
            ours, which is one CPU per rank of the largest world, or one if the ranks are threads, times `jobs`; a
            `resources:memory:<MB>` replaces ours, which is what the ranks need to import torch and talk to each other.
        deps: Libraries that the cases import. The macro adds dist_testing, torch, and the `deps` of the backend.
        data: Files that the cases read.
        env: Environment of the tests, without the variables that dist_testing or Bazel sets.
        env_inherit: Names of variables that tests inherit from the environment of Bazel's client, without those that
            dist_testing or Bazel sets.
        args: Arguments of the test program: options of pytest, or a program's own.
        exec_properties: Properties for remote executors; keys begin with `test.`. They replace those that follow from the
            pools of MODULE.bazel, key by key.
        target_compatible_with: More conditions, besides the one that follows from the GPUs. Bazel skips a target that they
            exclude, also where no pool of a remote executor has its GPUs.
        visibility: Visibility of the targets and the suite.
        test_rule: The rule or macro that makes the tests, with the attributes of `py_test`, such as one of your company or of
            another rule set. Default: `py_test` of rules_python.
        **kwargs: More attributes, which go to `test_rule` unchanged.
    """
    nodes, settings = _or_default(nodes, 1), _or_default(settings, {})
    tags, deps = _or_default(tags, []), _or_default(deps, [])
    data, args, env = _or_default(data, []), _or_default(args, []), _or_default(env, {})
    env_inherit, exec_properties = _or_default(env_inherit, []), _or_default(exec_properties, {})
    target_compatible_with = _or_default(target_compatible_with, [])
    fail_on("dist_py_test in //" + native.package_name(), name_problems(name))
    suite = user_label(native.package_relative_label(":" + name))
    problems = wildcard_problems(name)
    backends, known, wrong_backends = resolve_backends(backends, BACKENDS)
    fail_on("dist_py_test " + suite, problems + wrong_backends)
    problems = world_size_problems(world_size, backends)
    problems += gpus_per_rank_problems(gpus_per_rank, backends, known)
    problems += ranks_per_gpu_problems(ranks_per_gpu, backends, known)
    problems += gpu_archs_problems(gpu_archs, backends, known)
    problems += isolation_problems(isolation, backends, known)
    problems += by_backend("shard_count", shard_count, backends)[1]
    problems += jobs_problems(jobs, backends, known)
    problems += srcs_problems(srcs)
    problems += program_backend_problems(program, backends, known)
    problems += timings_problems(timings)
    problems += lists_problems({
        "args": args,
        "data": data,
        "deps": deps,
        "env_inherit": env_inherit,
        "target_compatible_with": target_compatible_with,
    })
    problems += settings_problems(settings)
    problems += tags_problems(tags)
    problems += env_problems(env)
    problems += env_inherit_problems(env_inherit)
    problems += exec_properties_problems(exec_properties)
    problems += packages_problems("lock", lock, backends) + packages_problems("torch", torch, backends)
    problems += attributes_problems(kwargs)
    only_tests = {"jobs": jobs, "ranks_per_gpu": ranks_per_gpu, "shard_count": shard_count, "timings": timings}
    problems += program_problems(program, srcs, isolation, backends, only_tests, native.package_relative_label)
    fail_on("dist_py_test " + suite, problems)

    tests = []
    for backend in backends:
        world_sizes = _for_backend(world_size, backend, None)
        world_sizes = world_sizes if type(world_sizes) == "list" else [world_sizes]
        rank_gpus = _for_backend(gpus_per_rank, backend, known[backend]["gpus_per_rank"])
        gpu_ranks = _for_backend(ranks_per_gpu, backend, 1)
        fail_on("dist_py_test " + suite, gpu_total_problems(backend, max(world_sizes), rank_gpus, gpu_ranks))
        test = "{}_{}".format(name, backend)
        tests.append(struct(
            name = test,
            backend = known[backend],
            gpu_archs = _for_backend(gpu_archs, backend, []),
            gpus = gpus_of_world(max(world_sizes), rank_gpus, gpu_ranks),
            gpus_per_rank = rank_gpus,
            isolation = _for_backend(isolation, backend, isolations_of(known[backend])[0]),
            jobs = _for_backend(jobs, backend, 1),
            lock = _for_backend(lock, backend, None),
            nodes = nodes,
            ranks_per_gpu = gpu_ranks,
            shard_count = _for_backend(shard_count, backend, None),
            target = "{}_{}".format(suite, backend),
            torch = _for_backend(torch, backend, None),
            world_sizes = world_sizes,
        ))
    fail_on("dist_py_test " + suite, nodes_problems(nodes, tests))

    sizes = [size for test in tests for size in test.world_sizes]
    fail_on("dist_py_test " + suite, expected_exits_problems(program, expected_exits, sizes))
    names_labels = expands_labels(args) or expands_labels(env)
    if names_labels:
        # $(location) names what is in `data` or `deps`.
        data = data + srcs if type(srcs) == "select" else add_labels(data, srcs)
        data = data + deps if type(deps) == "select" and not lock and not torch else data
    data = data + select_check(
        name = name + ".check",
        suite = suite,
        env = env,
        env_inherit = env_inherit,
        exec_properties = exec_properties,
        srcs = srcs,
    )

    # What our own variables name.
    own_data = []
    if program != None:
        src_labels = [user_label(native.package_relative_label(program))]
    elif type(srcs) == "select":
        # Bazel knows the files when it analyses the target, and tells the runner.
        native.filegroup(
            name = name + ".srcs",
            testonly = True,
            srcs = srcs,
            tags = ["manual"],
            visibility = ["//visibility:private"],
        )
        src_labels = [suite + ".srcs"]
        env = env | {"DIST_TESTING_SPEC_SRCS": "$(rlocationpaths :{}.srcs)".format(name)}
        own_data = [":" + name + ".srcs"]
    else:
        src_labels = [user_label(native.package_relative_label(src)) for src in srcs]
    if nodes > 1:
        settings = settings | {"nodes": nodes}
    if program != None:
        settings = settings | {"programs": [[rank, code] for rank, code in (expected_exits or {}).items()]}
    spec_texts = [
        spec_variable(test, backends = backends, settings = settings, srcs = src_labels)
        for test in tests
    ]
    for spec_text in spec_texts:
        fail_on("dist_py_test " + suite, spec_problems(spec_text, src_labels))

    if timings and type(data) == "select":
        # Bazel refuses a label that is there twice, and a select() hides its labels.
        native.filegroup(
            name = name + ".timings",
            testonly = True,
            srcs = [timings],
            tags = ["manual"],
            visibility = ["//visibility:private"],
        )
        timings = ":" + name + ".timings"
    if timings:
        env = env | {"DIST_TESTING_TIMINGS": "$(rlocationpath {})".format(timings)}
        own_data.append(timings)
    data = add_labels(data, own_data)
    promise = [GPU_PROMISE] if [test for test in tests if test.gpus] else []
    sources = test_sources(name = name, attributes = kwargs, deps = deps, srcs = srcs)
    dist_test_spec(
        name = name + ".spec",
        testonly = True,
        arguments = args,
        backends = [test.backend["name"] for test in tests],
        # What $(location) and $(VARIABLE) may name. Without them, no second edge to each target.
        data = (data if names_labels else own_data) + promise,
        deps = deps if names_labels else [],
        env = env,
        files = [test.name + ".spec.txt" for test in tests],
        gpu_archs = [json.encode(test.gpu_archs) for test in tests],
        gpus = [test.gpus for test in tests],
        gpus_per_rank = [test.gpus_per_rank for test in tests],
        is_program = program != None,
        isolations = [test.isolation for test in tests],
        nodes = nodes,
        ranks_per_gpu = [test.ranks_per_gpu for test in tests],
        specs = spec_texts,
        tags = ["manual"],
        targets = [test.target for test in tests],
        toolchains = kwargs.get("toolchains"),
        visibility = visibility,
        world_sizes = [json.encode(test.world_sizes) for test in tests],
    )
    for test, spec_text in zip(tests, spec_texts):
        one_backend(
            test = test,
            sources = sources,
            args = args,
            data = data,
            deps = deps,
            env = env | promise_variables(test.gpus) | {"DIST_TESTING_SPEC": spec_text},
            env_inherit = env_inherit,
            exec_properties = exec_properties,
            size = size,
            tags = tags,
            target_compatible_with = target_compatible_with,
            test_rule = test_rule,
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
