"""Tests of the targets that the rules and the macro make."""

load("@bazel_skylib//lib:unittest.bzl", "analysistest", "asserts", "unittest")
load("//dist_testing:defs.bzl", "dist_py_test")
load("//dist_testing:providers.bzl", "DistTestsInfo")
load("//dist_testing/private:library_flag.bzl", "unset_library")  # buildifier: disable=bzl-visibility
load(":backends_tests.bzl", "RING")

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
            "backends": ["gloo", "nccl"],
            "isolation": "fork",
            "schema": 7,
            "settings": {"key_value": 10},
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

def _foreign_test_impl(ctx):
    env = analysistest.begin(ctx)
    spec = _written_spec(env)
    asserts.equals(env, {key: value for key, value in RING.items() if key != "deps"}, spec["backend"])
    asserts.equals(env, (["gloo", "ring"], [3], "fork"), (spec["backends"], spec["world_sizes"], spec["isolation"]))
    asserts.equals(env, "//tests/starlark:foreign_ring", spec["target"])
    return analysistest.end(env)

foreign_test = analysistest.make(_foreign_test_impl)

def _queried_spec_test_impl(ctx):
    env = analysistest.begin(ctx)
    gloo, nccl = analysistest.target_under_test(env)[DistTestsInfo].tests
    asserts.equals(env, ("gloo", 0, [2, 4]), (gloo.backend, gloo.gpus, gloo.world_sizes))
    asserts.equals(env, ("fork", 1, "//tests/starlark:subject_gloo"), (gloo.isolation, gloo.nodes, gloo.target))
    asserts.equals(env, ("nccl", 6, [3]), (nccl.backend, nccl.gpus, nccl.world_sizes))
    asserts.equals(env, (2, 1), (nccl.gpus_per_rank, nccl.ranks_per_gpu))
    return analysistest.end(env)

queried_spec_test = analysistest.make(_queried_spec_test_impl)

# Variables that a test inherits by rules_python 2.x.
_OF_RULES_PYTHON = ["PYTHONBREAKPOINT"]

# --- the promise -----------------------------------------------------------------------------------

_PROMISE = "dist_testing/config/gpu_promise.json"
_HARDWARE = "hardware.json"

def _has_hardware(env):
    return any([path.endswith("/" + _HARDWARE) for path in _runfiles(env)])

def _cpu_promise_test_impl(ctx):
    # Their results do not depend on the promise or the machine, so neither may their cache keys.
    env = analysistest.begin(ctx)
    asserts.false(env, _PROMISE in _runfiles(env))
    asserts.false(env, _has_hardware(env))
    return analysistest.end(env)

cpu_promise_test = analysistest.make(_cpu_promise_test_impl, config_settings = {_GPUS_FLAG: "8"})

def _gpu_promise_test_impl(ctx):
    env = analysistest.begin(ctx)
    variables = analysistest.target_under_test(env)[RunEnvironmentInfo].environment
    asserts.equals(
        env,
        {"gpus": {"archs": [], "per_rank": 2, "ranks_per_gpu": 1}, "key_value": 10},
        _written_spec(env)["settings"],
    )
    asserts.equals(env, "{}/{}".format(ctx.workspace_name, _PROMISE), variables["DIST_TESTING_GPU_PROMISE"])
    inherited = analysistest.target_under_test(env)[RunEnvironmentInfo].inherited_environment
    asserts.equals(env, ["MY_RANK", "CUDA_VISIBLE_DEVICES"], [name for name in inherited if name not in _OF_RULES_PYTHON])
    asserts.true(env, _PROMISE in _runfiles(env))
    asserts.true(env, _has_hardware(env))
    return analysistest.end(env)

gpu_promise_test = analysistest.make(_gpu_promise_test_impl, config_settings = {_GPUS_FLAG: "8"})

# --- the test target -------------------------------------------------------------------------------

def _environment_test_impl(ctx):
    env = analysistest.begin(ctx)
    variables = analysistest.target_under_test(env)[RunEnvironmentInfo].environment
    asserts.equals(env, ["DIST_TESTING_SPEC", "MINE"], sorted(variables))
    asserts.equals(env, "yes", variables["MINE"])
    inherited = analysistest.target_under_test(env)[RunEnvironmentInfo].inherited_environment
    asserts.equals(env, ["MY_RANK"], [name for name in inherited if name not in _OF_RULES_PYTHON])
    asserts.true(env, "tests/starlark/subject_gloo.spec.txt" in _runfiles(env))
    return analysistest.end(env)

environment_test = analysistest.make(_environment_test_impl)

def _timings_test_impl(ctx):
    # For every form of the label in `data`, because Bazel refuses a repeated label.
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
    """Returns an attribute of a target of this package, without the tags that rules_python adds."""
    return [value for value in native.existing_rule(target)[attribute] if not value.startswith("__PYTHON_RULES")]

# --- the program without Bazel ---------------------------------------------------------------------

def _program_test_impl(ctx):
    env = analysistest.begin(ctx)
    [lines] = [
        action.content.splitlines()
        for action in analysistest.target_actions(env)
        if action.outputs.to_list()[0].basename == ctx.attr.file
    ]
    program = json.decode(lines[0])
    asserts.equals(env, ctx.attr.arguments, program["args"])
    for name, value in ctx.attr.variables.items():
        asserts.equals(env, value, program["environment"][name])
    asserts.equals(env, ctx.workspace_name, program["environment"]["TEST_WORKSPACE"])
    target = "//tests/starlark:" + ctx.attr.file.removesuffix(".spec.txt")
    asserts.equals(env, target, json.decode(lines[1])["target"])
    asserts.equals(env, ctx.attr.is_program, program["is_program"])
    return analysistest.end(env)

program_test = analysistest.make(
    _program_test_impl,
    attrs = {
        "arguments": attr.string_list(),
        "file": attr.string(),
        "is_program": attr.bool(),
        "variables": attr.string_dict(),
    },
)

# --- libraries -------------------------------------------------------------------------------------

def _unset_library_test_impl(ctx):
    env = analysistest.begin(ctx)
    flag = "@dist_testing//tests/starlark:torch"
    asserts.expect_failure(env, flag + " is not set, so dist_testing does not know your torch.")
    asserts.expect_failure(env, "MODULE.bazel, with your own hub's name: dist_testing.packages(hub = \"@pypi\")")
    asserts.expect_failure(env, ".bazelrc: build --{}=@pypi//torch".format(flag))
    return analysistest.end(env)

unset_library_test = analysistest.make(_unset_library_test_impl, expect_failure = True)

# --- all of them -----------------------------------------------------------------------------------

def targets_test_suite(*, name):
    """Declares the targets that the tests of this file examine, the tests, and a suite of them.

    Args:
        name: Name of the suite.
    """
    dist_py_test(
        name = "foreign",
        size = "small",
        srcs = ["cases.py"],
        backends = ["gloo", RING],
        # The macro adds the library of the backend, and Bazel refuses a label that is there twice.
        deps = ["//dist_testing"],
        tags = ["manual"],
        timings = "cases.py",
        world_size = {"gloo": 2, "ring": 3},
    )
    dist_py_test(
        name = "subject",
        srcs = ["cases.py"],
        backends = ["gloo", "nccl"],
        env = {"MINE": "yes"},
        env_inherit = ["MY_RANK"],
        gpus_per_rank = {"nccl": 2},
        settings = {"key_value": 10},
        size = "small",
        tags = ["manual"],
        visibility = ["//tests:__subpackages__"],
        world_size = {"gloo": [2, 4], "nccl": 3},
    )
    for subject, more in {
        "it's `$dollars`": {},
        "nothing_said": {
            name: None
            for name in ["deps", "data", "args", "env", "env_inherit", "exec_properties", "nodes", "settings", "target_compatible_with"]
        },
        "timings": {"timings": "cases.py"},
        "timings_in_list": {"data": [":cases.py", Label(":BUILD.bazel")], "timings": "cases.py"},
        "timings_in_select": {"data": select({"//conditions:default": [":cases.py"]}), "timings": "cases.py"},
    }.items():
        arguments = {"tags": ["manual"]} | more
        dist_py_test(name = subject, size = "small", srcs = ["cases.py"], backends = ["gloo"], world_size = 2, **arguments)
        if "timings" in more:
            timings_test(name = subject + "_test", size = "small", target_under_test = ":{}_gloo".format(subject))
    cpu_spec_test(name = "cpu_spec_test", size = "small", target_under_test = ":subject_gloo")
    dollar_spec_test(name = "dollar_spec_test", size = "small", target_under_test = ":it's `$dollars`_gloo")
    queried_spec_test(name = "queried_spec_test", size = "small", target_under_test = ":subject.spec")
    cpu_promise_test(name = "cpu_promise_test", size = "small", target_under_test = ":subject_gloo")
    gpu_promise_test(name = "gpu_promise_test", size = "small", target_under_test = ":subject_nccl")
    foreign_test(name = "foreign_test", size = "small", target_under_test = ":foreign_ring")
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
        expected = ["cpu:3", "gpus:6", "resources:gpu:6", "resources:memory:3295", "world_size:3"],
    )

    program_test(
        name = "quoted_program_test",
        size = "small",
        file = "it's `$dollars`_gloo.spec.txt",
        target_under_test = ":it's `$dollars`.spec",
    )
    program_test(
        name = "program_without_bazel_test",
        size = "small",
        file = "subject_gloo.spec.txt",
        target_under_test = ":subject.spec",
        variables = {"MINE": "yes"},
    )

    unset_library(name = "unset", flag = "torch", module = "dist_testing", package = "torch", tags = ["manual"])
    unset_library_test(name = "unset_library_test", size = "small", target_under_test = ":unset")

    native.test_suite(
        name = name,
        tests = [
            ":cpu_promise_test",
            ":cpu_spec_test",
            ":dollar_spec_test",
            ":environment_test",
            ":foreign_test",
            ":gpu_promise_test",
            ":largest_world_counts_test",
            ":queried_spec_test",
            ":quoted_program_test",
            ":program_without_bazel_test",
            ":spec_is_visible_test",
            ":suite_is_manual_test",
            ":suite_test",
            ":timings_in_list_test",
            ":timings_in_select_test",
            ":timings_test",
            ":unset_library_test",
        ],
    )
