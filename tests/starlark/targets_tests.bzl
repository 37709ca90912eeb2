"""What the rules and the macro make of their arguments."""

load("@bazel_skylib//lib:unittest.bzl", "analysistest", "asserts", "unittest")
load("//dist_testing:defs.bzl", "dist_py_test")
load("//dist_testing:providers.bzl", "DistTestsInfo", "GpuCountInfo")
load("//dist_testing/private:gpus.bzl", "ALL_GPUS", "gpu_compatibility", "gpu_count_flag")  # buildifier: disable=bzl-visibility
load("//dist_testing/private:library_flag.bzl", "unset_library")  # buildifier: disable=bzl-visibility

_GPUS_FLAG = str(Label("//dist_testing/config:gpus"))

# --- the spec --------------------------------------------------------------------------------------

def _written_spec(env):
    return json.decode(analysistest.target_under_test(env)[RunEnvironmentInfo].environment["DIST_TESTING_SPEC"])

def _runfiles(env):
    return [file.short_path for file in analysistest.target_under_test(env)[DefaultInfo].default_runfiles.files.to_list()]

def _cpu_spec_test_impl(ctx):
    env = analysistest.begin(ctx)
    spec = _written_spec(env)
    backend = spec.pop("backend")
    asserts.equals(env, "gloo", backend["name"])
    asserts.equals(env, "cpu", backend["device"])
    asserts.equals(
        env,
        {
            "gpus_per_rank": 0,
            "isolation": "fork",
            "nodes": 1,
            "ranks_per_gpu": 1,
            "schema": 2,
            "srcs": ["//tests/starlark:cases.py"],
            "target": "//tests/starlark:subject_gloo",
            "world_sizes": [2, 4],
        },
        spec,
    )
    return analysistest.end(env)

cpu_spec_test = analysistest.make(_cpu_spec_test_impl, config_settings = {_GPUS_FLAG: "8"})

def _dollar_spec_test_impl(ctx):
    env = analysistest.begin(ctx)
    asserts.equals(env, "//tests/starlark:it's `$dollars`_gloo", _written_spec(env)["target"])
    return analysistest.end(env)

dollar_spec_test = analysistest.make(_dollar_spec_test_impl)

def _queried_spec_test_impl(ctx):
    env = analysistest.begin(ctx)
    gloo, nccl = analysistest.target_under_test(env)[DistTestsInfo].tests
    asserts.equals(env, ("gloo", 0, [2, 4]), (gloo.backend, gloo.gpus, gloo.world_sizes))
    asserts.equals(env, ("fork", 1, "//tests/starlark:subject_gloo"), (gloo.isolation, gloo.nodes, gloo.target))
    asserts.equals(env, ("nccl", 6, [3]), (nccl.backend, nccl.gpus, nccl.world_sizes))
    asserts.equals(env, (2, 1), (nccl.gpus_per_rank, nccl.ranks_per_gpu))
    return analysistest.end(env)

queried_spec_test = analysistest.make(_queried_spec_test_impl)

# --- the promise -----------------------------------------------------------------------------------

_PROMISE = "dist_testing/config/gpu_promise.json"
_HARDWARE = "hardware.json"

def _has_hardware(env):
    return any([path.endswith("/" + _HARDWARE) for path in _runfiles(env)])

def _cpu_promise_test_impl(ctx):
    # Their results are the same under any promise and on any machine, and so are their keys in a cache.
    env = analysistest.begin(ctx)
    asserts.false(env, _PROMISE in _runfiles(env))
    asserts.false(env, _has_hardware(env))
    return analysistest.end(env)

cpu_promise_test = analysistest.make(_cpu_promise_test_impl, config_settings = {_GPUS_FLAG: "8"})

def _gpu_promise_test_impl(ctx):
    env = analysistest.begin(ctx)
    variables = analysistest.target_under_test(env)[RunEnvironmentInfo].environment
    asserts.equals(env, 2, _written_spec(env)["gpus_per_rank"])
    asserts.equals(env, "{}/{}".format(ctx.workspace_name, _PROMISE), variables["DIST_TESTING_GPU_PROMISE"])
    inherited = analysistest.target_under_test(env)[RunEnvironmentInfo].inherited_environment
    asserts.equals(env, ["MY_RANK", "CUDA_VISIBLE_DEVICES"], inherited)
    asserts.true(env, _PROMISE in _runfiles(env))
    asserts.true(env, _has_hardware(env))
    return analysistest.end(env)

gpu_promise_test = analysistest.make(_gpu_promise_test_impl, config_settings = {_GPUS_FLAG: "8"})

def _written_promise(env):
    contents = [action.content for action in analysistest.target_actions(env) if action.mnemonic == "FileWrite"]
    asserts.equals(env, 1, len(contents))
    return json.decode(contents[0])

def _kept_promise_test_impl(ctx):
    env = analysistest.begin(ctx)
    asserts.equals(env, 8, _written_promise(env)["promised"]["nvidia"])
    return analysistest.end(env)

kept_promise_test = analysistest.make(_kept_promise_test_impl, config_settings = {_GPUS_FLAG: "8"})

def _no_promise_test_impl(ctx):
    env = analysistest.begin(ctx)
    asserts.equals(env, {"promised": None, "schema": 1}, _written_promise(env))
    return analysistest.end(env)

no_promise_test = analysistest.make(_no_promise_test_impl, config_settings = {_GPUS_FLAG: "auto"})

# --- the test target -------------------------------------------------------------------------------

def _environment_test_impl(ctx):
    env = analysistest.begin(ctx)
    variables = analysistest.target_under_test(env)[RunEnvironmentInfo].environment
    asserts.equals(env, ["DIST_TESTING_SPEC", "MINE"], sorted(variables))
    asserts.equals(env, "yes", variables["MINE"])
    asserts.equals(env, ["MY_RANK"], analysistest.target_under_test(env)[RunEnvironmentInfo].inherited_environment)
    return analysistest.end(env)

environment_test = analysistest.make(_environment_test_impl)

def _timings_test_impl(ctx):
    # However the file is named in `data`: Bazel refuses a label that is there twice.
    env = analysistest.begin(ctx)
    variables = analysistest.target_under_test(env)[RunEnvironmentInfo].environment
    asserts.equals(env, ctx.workspace_name + "/tests/starlark/cases.py", variables["DIST_TESTING_TIMINGS"])
    asserts.true(env, "tests/starlark/cases.py" in _runfiles(env))
    return analysistest.end(env)

timings_test = analysistest.make(_timings_test_impl)

def _declared_test_impl(ctx):
    env = unittest.begin(ctx)
    asserts.equals(env, ctx.attr.expected, ctx.attr.actual)
    return unittest.end(env)

declared_test = unittest.make(
    _declared_test_impl,
    attrs = {
        "actual": attr.string_list(),
        "expected": attr.string_list(),
    },
)

def _declared(target, attribute):
    """An attribute of a target of this package, without what rules_python adds to tags."""
    return [value for value in native.existing_rule(target)[attribute] if not value.startswith("__PYTHON_RULES")]

# --- GPUs ------------------------------------------------------------------------------------------

_ConstraintsInfo = provider(doc = "Constraints that a target was given.", fields = {"names": "list of str"})

def _constraints_impl(ctx):
    return _ConstraintsInfo(names = [constraint.label.name for constraint in ctx.attr.constraints])

# Takes what a test would be compatible with as plain labels: a target that is skipped cannot be tested.
_constraints = rule(
    implementation = _constraints_impl,
    attrs = {"constraints": attr.label_list(providers = [platform_common.ConstraintValueInfo])},
)

def _enough_gpus_test_impl(ctx):
    env = analysistest.begin(ctx)
    asserts.equals(env, [], analysistest.target_under_test(env)[_ConstraintsInfo].names)
    return analysistest.end(env)

enough_gpus_test = analysistest.make(_enough_gpus_test_impl, config_settings = {_GPUS_FLAG: "2"})

def _lacking_gpus_test_impl(ctx):
    env = analysistest.begin(ctx)
    asserts.equals(
        env,
        ["needs_2_nvidia_gpus_but_this_machine_has_fewer"],
        analysistest.target_under_test(env)[_ConstraintsInfo].names,
    )
    return analysistest.end(env)

lacking_gpus_test = analysistest.make(_lacking_gpus_test_impl, config_settings = {_GPUS_FLAG: "1"})

def _no_such_gpus_test_impl(ctx):
    env = analysistest.begin(ctx)
    asserts.equals(
        env,
        ["needs_1_intel_gpu_but_this_machine_has_fewer"],
        analysistest.target_under_test(env)[_ConstraintsInfo].names,
    )
    return analysistest.end(env)

# Not "auto": this machine may have such a card.
no_such_gpus_test = analysistest.make(_no_such_gpus_test_impl, config_settings = {_GPUS_FLAG: "0"})

def _bad_gpus_flag_test_impl(ctx):
    env = analysistest.begin(ctx)
    asserts.expect_failure(env, "config:gpus=many: not \"auto\", \"present\", \"pools\" or a number")
    return analysistest.end(env)

bad_gpus_flag_test = analysistest.make(
    _bad_gpus_flag_test_impl,
    config_settings = {_GPUS_FLAG: "many"},
    expect_failure = True,
)

def _flag_subject(name, pools, *, value = "pools", detected = {"nvidia": 2}):
    gpu_count_flag(
        name = name,
        # Of an analysis test's subject the value is this one; config_settings name the real flag.
        build_setting_default = value,
        detected = json.encode(detected),
        pools = json.encode(pools),
        tags = ["manual"],
    )

_POOLS = [
    {"gpus": 0, "name": "cpu", "properties": {}, "vendor": ""},
    {"gpus": 4, "name": "four", "properties": {}, "vendor": "nvidia"},
    {"gpus": 2, "name": "two", "properties": {}, "vendor": "nvidia"},
    {"gpus": 8, "name": "eight", "properties": {}, "vendor": "amd"},
]

def _pools_flag_test_impl(ctx):
    env = analysistest.begin(ctx)
    info = analysistest.target_under_test(env)[GpuCountInfo]
    asserts.equals(env, {"amd": 8, "nvidia": 4}, info.available)
    asserts.true(env, info.is_promised)
    asserts.equals(env, ["cpu", "four", "two", "eight"], [pool["name"] for pool in info.pools])
    return analysistest.end(env)

pools_flag_test = analysistest.make(_pools_flag_test_impl)

def _no_pools_test_impl(ctx):
    env = analysistest.begin(ctx)
    asserts.expect_failure(env, "=pools: no pool is declared.")
    asserts.expect_failure(env, "Declare them (docs/executors.md), or use \"auto\", \"present\" or a number.")
    return analysistest.end(env)

no_pools_test = analysistest.make(_no_pools_test_impl, expect_failure = True)

def _present_flag_test_impl(ctx):
    env = analysistest.begin(ctx)
    info = analysistest.target_under_test(env)[GpuCountInfo]
    asserts.equals(env, ({"amd": 0, "nvidia": 2}, True, None), (info.available, info.is_promised, info.pools))
    return analysistest.end(env)

present_flag_test = analysistest.make(_present_flag_test_impl)

def _absent_flag_test_impl(ctx):
    # A lane that promises GPUs on a machine that has lost them must not be green.
    env = analysistest.begin(ctx)
    info = analysistest.target_under_test(env)[GpuCountInfo]
    asserts.equals(env, (ALL_GPUS, True), (info.available["nvidia"], info.is_promised))
    return analysistest.end(env)

absent_flag_test = analysistest.make(_absent_flag_test_impl)

# --- debugging -------------------------------------------------------------------------------------

def _run_test_impl(ctx):
    env = analysistest.begin(ctx)
    scripts = [action.content for action in analysistest.target_actions(env) if action.mnemonic == "FileWrite"]
    asserts.equals(env, 1, len(scripts))
    asserts.true(env, "exec \"$RUNFILES_DIR\"/'{}/tests/starlark/subject_gloo' \"$@\"\n".format(ctx.workspace_name) in scripts[0], scripts[0])
    target = analysistest.target_under_test(env)
    asserts.equals(env, "yes", target[RunEnvironmentInfo].environment["MINE"])
    runfiles = [file.short_path for file in target[DefaultInfo].default_runfiles.files.to_list()]
    for needed in ["subject_gloo", "cases.py"]:
        asserts.true(env, "tests/starlark/" + needed in runfiles, "{} is not in the runfiles".format(needed))
    return analysistest.end(env)

run_test = analysistest.make(_run_test_impl)

def _quoted_run_test_impl(ctx):
    env = analysistest.begin(ctx)
    script = [action.content for action in analysistest.target_actions(env) if action.mnemonic == "FileWrite"][0]
    program = ctx.workspace_name + "/tests/starlark/it'\\''s `$dollars`_gloo"
    asserts.true(env, "exec \"$RUNFILES_DIR\"/'{}' \"$@\"\n".format(program) in script, script)
    return analysistest.end(env)

quoted_run_test = analysistest.make(_quoted_run_test_impl)

# --- libraries -------------------------------------------------------------------------------------

def _unset_library_test_impl(ctx):
    env = analysistest.begin(ctx)
    flag = "@dist_testing//tests/starlark:torch"
    asserts.expect_failure(env, flag + " is not set, so dist_testing does not know your torch.")
    asserts.expect_failure(env, "Add to .bazelrc, with your own hub's name: build --{}=@pypi//torch".format(flag))
    return analysistest.end(env)

unset_library_test = analysistest.make(_unset_library_test_impl, expect_failure = True)

# --- all of them -----------------------------------------------------------------------------------

def targets_test_suite(*, name):
    """Declares the targets that the tests of this file look at, the tests, and a suite of them.

    Args:
        name: Name of the suite.
    """
    dist_py_test(
        name = "subject",
        srcs = ["cases.py"],
        backends = ["gloo", "nccl"],
        env = {"MINE": "yes"},
        env_inherit = ["MY_RANK"],
        gpus_per_rank = {"nccl": 2},
        size = "small",
        tags = ["manual"],
        visibility = ["//tests:__subpackages__"],
        world_size = {"gloo": [2, 4], "nccl": 3},
    )
    for subject, more in {
        "it's `$dollars`": {},
        "timings": {"timings": "cases.py"},
        "timings_in_list": {"data": [":cases.py", Label(":BUILD.bazel")], "timings": "cases.py"},
        "timings_in_select": {"data": select({"//conditions:default": [":cases.py"]}), "timings": "cases.py"},
    }.items():
        dist_py_test(name = subject, size = "small", srcs = ["cases.py"], backends = ["gloo"], tags = ["manual"], world_size = 2, **more)
        if more:
            timings_test(name = subject + "_test", size = "small", target_under_test = ":{}_gloo".format(subject))
    cpu_spec_test(name = "cpu_spec_test", size = "small", target_under_test = ":subject_gloo")
    dollar_spec_test(name = "dollar_spec_test", size = "small", target_under_test = ":it's `$dollars`_gloo")
    queried_spec_test(name = "queried_spec_test", size = "small", target_under_test = ":subject.spec")
    cpu_promise_test(name = "cpu_promise_test", size = "small", target_under_test = ":subject_gloo")
    gpu_promise_test(name = "gpu_promise_test", size = "small", target_under_test = ":subject_nccl")
    kept_promise_test(name = "kept_promise_test", size = "small", target_under_test = "//dist_testing/config:gpu_promise")
    no_promise_test(name = "no_promise_test", size = "small", target_under_test = "//dist_testing/config:gpu_promise")
    environment_test(name = "environment_test", size = "small", target_under_test = ":subject_gloo")
    declared_test(
        name = "suite_test",
        size = "small",
        actual = [str(test) for test in native.existing_rule("subject")["tests"]],
        expected = [":subject_gloo", ":subject_nccl"],
    )
    declared_test(
        name = "suite_is_manual_test",
        size = "small",
        actual = _declared("subject", "tags"),
        expected = ["manual"],
    )
    declared_test(
        name = "spec_is_visible_test",
        size = "small",
        actual = [str(label) for label in native.existing_rule("subject.spec")["visibility"]],
        expected = ["//tests:__subpackages__"],
    )
    declared_test(
        name = "largest_world_counts_test",
        size = "small",
        actual = [tag for tag in _declared("subject_nccl", "tags") if tag.startswith(("cpu", "gpus:", "resources", "world"))],
        expected = ["cpu:3", "gpus:6", "resources:gpu:6", "world_size:3"],
    )

    _constraints(name = "two_gpus", constraints = gpu_compatibility("nvidia", 2, []), tags = ["manual"])
    _constraints(name = "intel_gpu", constraints = gpu_compatibility("intel", 1, []), tags = ["manual"])
    enough_gpus_test(name = "enough_gpus_test", size = "small", target_under_test = ":two_gpus")
    lacking_gpus_test(name = "lacking_gpus_test", size = "small", target_under_test = ":two_gpus")
    no_such_gpus_test(name = "no_such_gpus_test", size = "small", target_under_test = ":intel_gpu")
    _flag_subject("pools_flag", _POOLS)
    _flag_subject("no_pools_flag", [])
    _flag_subject("present_flag", [], value = "present", detected = {"amd": 0, "nvidia": 2})
    _flag_subject("absent_flag", [], value = "present", detected = {"amd": 0, "nvidia": 0})
    present_flag_test(name = "present_flag_test", size = "small", target_under_test = ":present_flag")
    absent_flag_test(name = "absent_flag_test", size = "small", target_under_test = ":absent_flag")
    pools_flag_test(name = "pools_flag_test", size = "small", target_under_test = ":pools_flag")
    no_pools_test(name = "no_pools_test", size = "small", target_under_test = ":no_pools_flag")
    quoted_run_test(name = "quoted_run_test", size = "small", target_under_test = ":it's `$dollars`_gloo.run")
    run_test(name = "run_test", size = "small", target_under_test = ":subject_gloo.run")
    bad_gpus_flag_test(name = "bad_gpus_flag_test", size = "small", target_under_test = "//dist_testing/config:gpus")

    unset_library(name = "unset", flag = "torch", module = "dist_testing", package = "torch", tags = ["manual"])
    unset_library_test(name = "unset_library_test", size = "small", target_under_test = ":unset")

    native.test_suite(
        name = name,
        tests = [
            ":absent_flag_test",
            ":bad_gpus_flag_test",
            ":cpu_promise_test",
            ":cpu_spec_test",
            ":dollar_spec_test",
            ":enough_gpus_test",
            ":environment_test",
            ":gpu_promise_test",
            ":kept_promise_test",
            ":lacking_gpus_test",
            ":largest_world_counts_test",
            ":no_pools_test",
            ":no_promise_test",
            ":no_such_gpus_test",
            ":pools_flag_test",
            ":present_flag_test",
            ":queried_spec_test",
            ":quoted_run_test",
            ":run_test",
            ":spec_is_visible_test",
            ":suite_is_manual_test",
            ":suite_test",
            ":timings_in_list_test",
            ":timings_in_select_test",
            ":timings_test",
            ":unset_library_test",
        ],
    )
