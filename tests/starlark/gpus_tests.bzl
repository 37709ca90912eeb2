"""The flag that counts GPUs, and the rules that depend on it."""

load("@bazel_skylib//lib:unittest.bzl", "analysistest", "asserts")
load("//dist_testing:providers.bzl", "GpuCountInfo")
load("//dist_testing/private:gpus.bzl", "ALL_GPUS", "gpu_compatibility", "gpu_count_flag")  # buildifier: disable=bzl-visibility

_GPUS_FLAG = str(Label("//dist_testing/config:gpus"))

# --- the promise -----------------------------------------------------------------------------------

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

# --- GPUs ------------------------------------------------------------------------------------------

_ConstraintsInfo = provider(doc = "Constraints that a target was given.", fields = {"names": "list of str"})

def _constraints_impl(ctx):
    return _ConstraintsInfo(names = [constraint.label.name for constraint in ctx.attr.constraints])

# Has the constraints of a test as plain labels, because a skipped target cannot be tested.
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

# Not "auto", because this machine may have such a card.
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
        # The subject of an analysis test has this value; config_settings set only the real flag.
        build_setting_default = value,
        detected = json.encode(detected),
        detected_archs = "{}",
        pools = json.encode(pools),
        tags = ["manual"],
    )

_POOLS = [
    {"gpu_arch": "", "gpus": 0, "name": "cpu", "properties": {}, "vendor": ""},
    {"gpu_arch": "", "gpus": 4, "name": "four", "properties": {}, "vendor": "nvidia"},
    {"gpu_arch": "", "gpus": 2, "name": "two", "properties": {}, "vendor": "nvidia"},
    {"gpu_arch": "", "gpus": 8, "name": "eight", "properties": {}, "vendor": "amd"},
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
    asserts.expect_failure(env, "Declare them (docs/remote.md), or use \"auto\", \"present\" or a number.")
    return analysistest.end(env)

no_pools_test = analysistest.make(_no_pools_test_impl, expect_failure = True)

def _present_flag_test_impl(ctx):
    env = analysistest.begin(ctx)
    info = analysistest.target_under_test(env)[GpuCountInfo]
    asserts.equals(env, ({"amd": 0, "nvidia": 2}, True, None), (info.available, info.is_promised, info.pools))
    return analysistest.end(env)

present_flag_test = analysistest.make(_present_flag_test_impl)

def _absent_flag_test_impl(ctx):
    # A CI job that promises GPUs must not be green on a machine that has lost them.
    env = analysistest.begin(ctx)
    info = analysistest.target_under_test(env)[GpuCountInfo]
    asserts.equals(env, (ALL_GPUS, True), (info.available["nvidia"], info.is_promised))
    return analysistest.end(env)

absent_flag_test = analysistest.make(_absent_flag_test_impl)

# --- all of them -----------------------------------------------------------------------------------

def gpus_test_suite(*, name):
    """Declares the targets that the tests of this file examine, the tests, and a suite of them.

    Args:
        name: Name of the suite.
    """
    _constraints(name = "two_gpus", constraints = gpu_compatibility("nvidia", 2, [], []), tags = ["manual"])
    _constraints(name = "intel_gpu", constraints = gpu_compatibility("intel", 1, [], []), tags = ["manual"])
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
    bad_gpus_flag_test(name = "bad_gpus_flag_test", size = "small", target_under_test = "//dist_testing/config:gpus")
    kept_promise_test(name = "kept_promise_test", size = "small", target_under_test = "//dist_testing/config:gpu_promise")
    no_promise_test(name = "no_promise_test", size = "small", target_under_test = "//dist_testing/config:gpu_promise")

    native.test_suite(
        name = name,
        tests = [
            ":absent_flag_test",
            ":bad_gpus_flag_test",
            ":enough_gpus_test",
            ":kept_promise_test",
            ":lacking_gpus_test",
            ":no_pools_test",
            ":no_promise_test",
            ":no_such_gpus_test",
            ":pools_flag_test",
            ":present_flag_test",
        ],
    )
