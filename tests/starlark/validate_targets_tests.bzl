"""Error texts of dist_py_test about targets, and values that are nearly wrong and right."""

load("@bazel_skylib//lib:partial.bzl", "partial")
load("@bazel_skylib//lib:unittest.bzl", "asserts", "unittest")
load(
    "//dist_testing/private:validate_targets.bzl",  # buildifier: disable=bzl-visibility
    "attributes_problems",
    "exec_properties_problems",
    "lists_problems",
    "packages_problems",
    "settings_problems",
    "tags_problems",
)
load(":problem_asserts.bzl", "assert_accepted", "assert_refused")

def _lists_test_impl(ctx):
    env = unittest.begin(ctx)
    assert_accepted(env, lists_problems({"args": ["-x"], "data": [], "deps": select({"//conditions:default": ["//a"]})}))
    assert_refused(env, lists_problems({"data": [], "deps": None}), "deps = None\n", "It is a list", "in brackets")
    assert_refused(env, lists_problems({"args": "-x"}), "args = \"-x\"\n", "in brackets")
    asserts.equals(env, 2, len(lists_problems({"args": None, "target_compatible_with": "//a"})))
    return unittest.end(env)

lists_test = unittest.make(_lists_test_impl)

def _exec_properties_test_impl(ctx):
    env = unittest.begin(ctx)
    assert_accepted(env, exec_properties_problems({}))
    assert_accepted(env, exec_properties_problems({"test.Pool": "large", "test.resources:gpu": "2"}))
    for wrong in ["Pool", "cpp_link.Pool", "test"]:
        assert_refused(
            env,
            exec_properties_problems({wrong: "large"}),
            "exec_properties: \"{}\" = \"large\"\n".format(wrong),
            "every action of the target",
            "Write \"test.{}\"".format(wrong),
        )
    assert_refused(env, exec_properties_problems({"test.": "large"}), "exec_properties: \"test.\" = \"large\"\n", "Write \"test.Pool\"")
    assert_refused(env, exec_properties_problems(["test.Pool"]), "It is a dict")
    assert_accepted(env, exec_properties_problems(select({"//conditions:default": {"Pool": "checked later"}})))
    return unittest.end(env)

exec_properties_test = unittest.make(_exec_properties_test_impl)

def _settings_test_impl(ctx):
    env = unittest.begin(ctx)
    assert_accepted(env, settings_problems({}))
    assert_accepted(env, settings_problems({"key_value": 10}))
    for wrong in [10, ["key_value"], {1: 10}]:
        assert_refused(env, settings_problems(wrong), "settings = {}\n".format(repr(wrong)), "names of add-ons")
    assert_refused(env, settings_problems({"nodes": 2}), "settings: \"nodes\" = 2\n", "arguments of its own: nodes.")
    assert_refused(env, settings_problems({"gpus": 1}), "arguments of its own: gpus_per_rank")
    return unittest.end(env)

settings_test = unittest.make(_settings_test_impl)

def _tags_test_impl(ctx):
    env = unittest.begin(ctx)
    assert_accepted(env, tags_problems(["manual", "cpu:2", "gpus", "distant", "no-cache"]))
    for right in ["cpu:1", "resources:cpu:0.5"]:
        assert_accepted(env, tags_problems([right]))
    for wrong in ["manual", None, [3]]:
        assert_refused(env, tags_problems(wrong), "tags = {}\n".format(repr(wrong)), "a list of strings")
    for reserved in [
        "backend:gloo",
        "dist",
        "gpu",
        "gpus:4",
        "gpus_ge_2",
        "multi_gpu",
        "requires-gpu-nvidia",
        "requires-gpu-nvidia:2",
        "resources:gpu:1",
        "world_size:2",
    ]:
        assert_refused(env, tags_problems(["manual", reserved]), "\"{}\" is set by dist_py_test".format(reserved))
    return unittest.end(env)

tags_test = unittest.make(_tags_test_impl)

def _attributes_test_impl(ctx):
    env = unittest.begin(ctx)
    assert_accepted(env, attributes_problems({"flaky": True, "shard_count": 2}))
    for reserved in ["main", "main_module", "srcs_version"]:
        assert_refused(env, attributes_problems({reserved: "x"}), "{} = \"x\"\n".format(reserved), "Drop it")
    return unittest.end(env)

attributes_test = unittest.make(_attributes_test_impl)

def _packages_test_impl(ctx):
    env = unittest.begin(ctx)
    for right in [None, "cuda", {"nccl": "cuda"}, {"gloo": None, "nccl": "cuda"}]:
        assert_accepted(env, packages_problems("lock", right, ["gloo", "nccl"]))
    assert_accepted(env, packages_problems("torch", Label("//a"), ["gloo"]))
    assert_refused(env, packages_problems("lock", {"ncl": "cuda"}, ["nccl"]), "the key \"ncl\" is not in backends")
    for wrong in ["", 3, Label("//a")]:
        assert_refused(env, packages_problems("lock", wrong, ["gloo"]), "lock = ", "Write, for example, lock = \"cuda\".")
    assert_refused(env, packages_problems("lock", "cudaa", ["gloo", "nccl"]), "lock = \"cudaa\". Did you mean \"cuda\"?", "Use one of: c")
    assert_refused(env, packages_problems("torch", {"gloo": ["//a"]}, ["gloo"]), "torch[\"gloo\"] = [\"//a\"]")
    return unittest.end(env)

packages_test = unittest.make(_packages_test_impl)

def validate_targets_test_suite(*, name):
    """Declares the tests of this file and a suite of them.

    Args:
        name: Name of the suite.
    """
    tests = [
        attributes_test,
        exec_properties_test,
        lists_test,
        packages_test,
        settings_test,
        tags_test,
    ]
    unittest.suite(name, *[partial.make(test, size = "small") for test in tests])
