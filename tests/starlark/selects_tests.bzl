"""Arguments of dist_py_test as symbolic macros pass them: each that is configurable in a select()."""

load("@bazel_skylib//lib:unittest.bzl", "analysistest", "asserts")
load("@rules_python//python:py_library.bzl", "py_library")
load("//dist_testing:defs.bzl", "dist_py_test")
load(":targets_tests.bzl", "program_test")

_GPUS_FLAG = str(Label("//dist_testing/config:gpus"))
_TORCH_FLAG = str(Label("//dist_testing/config:torch"))

def _always(value):
    """Wraps a value as Bazel wraps a configurable argument of a symbolic macro."""
    return select({"//conditions:default": value})

def _environment(env):
    return analysistest.target_under_test(env)[RunEnvironmentInfo].environment

def _runfiles(env):
    return [file.short_path for file in analysistest.target_under_test(env)[DefaultInfo].default_runfiles.files.to_list()]

def _all_selects_test_impl(ctx):
    env = analysistest.begin(ctx)
    variables = _environment(env)
    here = ctx.workspace_name + "/tests/starlark/"
    asserts.equals(env, "yes", variables["MINE"])
    asserts.equals(env, here + "cases.py", variables["DIST_TESTING_SPEC_SRCS"])
    asserts.equals(env, ["//tests/starlark:selects.srcs"], json.decode(variables["DIST_TESTING_SPEC"])["srcs"])
    inherited = analysistest.target_under_test(env)[RunEnvironmentInfo].inherited_environment
    asserts.equals(env, ["MY_RANK"], [name for name in inherited if name == "MY_RANK"])
    for needed in ["cases.py", "BUILD.bazel"]:
        asserts.true(env, "tests/starlark/" + needed in _runfiles(env), needed + " is not in the runfiles")
    return analysistest.end(env)

all_selects_test = analysistest.make(_all_selects_test_impl, config_settings = {_GPUS_FLAG: "8"})

def _refused_test_impl(ctx):
    env = analysistest.begin(ctx)
    for part in ctx.attr.expected:
        asserts.expect_failure(env, part)
    return analysistest.end(env)

refused_test = analysistest.make(
    _refused_test_impl,
    attrs = {"expected": attr.string_list()},
    expect_failure = True,
)

def _chosen_test_impl(ctx):
    env = analysistest.begin(ctx)
    for path in ctx.attr.present:
        asserts.true(env, path in _runfiles(env), path + " is not in the runfiles")
    for path in ctx.attr.absent:
        asserts.false(env, path in _runfiles(env), path + " is in the runfiles")
    return analysistest.end(env)

chosen_test = analysistest.make(
    _chosen_test_impl,
    attrs = {
        "absent": attr.string_list(),
        "present": attr.string_list(),
    },
    config_settings = {_TORCH_FLAG: str(Label("//tests/starlark:torch_of_the_command_line"))},
)

def _variables_impl(_ctx):
    return [platform_common.TemplateVariableInfo({"MY_VARIABLE": "yes"})]

_variables = rule(implementation = _variables_impl)

_WRONG = {
    "env": ({"env": _always({"RANK": "0"})}, ["env: RANK = \"0\"", "Drop it."]),
    "env_inherit": ({"env_inherit": _always(["WORLD_SIZE"])}, ["env_inherit: \"WORLD_SIZE\""]),
    "exec_properties": ({"exec_properties": _always({"Pool": "gpu"})}, ["exec_properties: \"Pool\" = \"gpu\"", "Write \"test.Pool\"."]),
    "srcs": ({"srcs": _always(["BUILD.bazel"])}, ["\"BUILD.bazel\" is not a Python file."]),
    "srcs_empty": ({"srcs": _always([])}, ["A list of at least one Python file is needed"]),
}

def selects_test_suite(*, name):
    """Declares the targets that the tests of this file examine, the tests, and a suite of them.

    Args:
        name: Name of the suite.
    """
    tests = ["all_selects_test", "all_selects_gpu_test", "chosen_torch_test", "located_test"]
    dist_py_test(
        name = "selects",
        size = "small",
        srcs = _always([Label(":cases.py")]),
        args = _always(["-v"]),
        backends = ["gloo", "nccl"],
        # A symbolic macro passes labels as objects. One of them is in `deps`, too.
        data = _always([Label(":BUILD.bazel"), Label("//dist_testing")]),
        # The library's own label, which the macro adds, too.
        deps = _always([Label("//dist_testing")]),
        env = _always({"MINE": "yes"}),
        env_inherit = _always(["MY_RANK"]),
        exec_properties = _always({"test.Mine": "yes"}),
        shard_count = _always(2),
        tags = ["manual"],
        target_compatible_with = _always([]),
        timings = None,
        visibility = [Label("//tests:__pkg__")],
        world_size = 2,
    )
    all_selects_test(name = "all_selects_test", size = "small", target_under_test = ":selects_gloo")
    all_selects_test(name = "all_selects_gpu_test", size = "small", target_under_test = ":selects_nccl")
    for argument, (wrong, expected) in _WRONG.items():
        arguments = {"srcs": ["cases.py"], "tags": ["manual"]} | wrong
        dist_py_test(name = "wrong_" + argument, size = "small", backends = ["gloo"], world_size = 2, **arguments)
        refused_test(
            name = "wrong_{}_test".format(argument),
            size = "small",
            expected = expected,
            target_under_test = ":wrong_{}_gloo".format(argument),
        )
        tests.append("wrong_{}_test".format(argument))

    # What only `deps` and `toolchains` bring.
    _variables(name = "variables", tags = ["manual"])
    py_library(name = "located", srcs = ["consumer.py"], tags = ["manual"])
    native.genrule(name = "generated", outs = ["generated.txt"], cmd = "touch $@", tags = ["manual"])
    dist_py_test(
        name = "locations",
        size = "small",
        srcs = ["cases.py"],
        args = _always(["$(location :located)", "$(location cases.py)", "$(location :generated) $(MY_VARIABLE)"]),
        backends = ["gloo"],
        data = [":generated"],
        deps = [":located"],
        tags = ["manual"],
        toolchains = [":variables"],
        world_size = 2,
    )
    program_test(
        name = "located_test",
        size = "small",
        arguments = ["tests/starlark/consumer.py", "tests/starlark/cases.py", "tests/starlark/generated.txt yes"],
        file = "locations_gloo.spec.txt",
        target_under_test = ":locations.spec",
    )

    for torch in ["torch_of_the_command_line", "torch_of_the_target"]:
        py_library(name = torch, data = [":{}.txt".format(torch)], tags = ["manual"])
        native.genrule(name = torch + "_file", outs = [torch + ".txt"], cmd = "touch $@", tags = ["manual"])
    dist_py_test(
        name = "own_torch",
        size = "small",
        srcs = ["cases.py"],
        backends = ["gloo"],
        tags = ["manual"],
        torch = ":torch_of_the_target",
        world_size = 2,
    )
    chosen_test(
        name = "chosen_torch_test",
        size = "small",
        absent = ["tests/starlark/torch_of_the_command_line.txt"],
        present = ["tests/starlark/torch_of_the_target.txt"],
        target_under_test = ":own_torch_gloo",
    )
    native.test_suite(name = name, tests = [":" + test for test in tests])
