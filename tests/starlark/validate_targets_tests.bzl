"""Errors of dist_py_test about targets: every text, and the nearest values that are right."""

load("@bazel_skylib//lib:partial.bzl", "partial")
load("@bazel_skylib//lib:unittest.bzl", "asserts", "unittest")
load(
    "//dist_testing/private:validate_targets.bzl",  # buildifier: disable=bzl-visibility
    "attributes_problems",
    "exec_properties_problems",
    "lists_problems",
    "shard_count_problems",
    "tags_problems",
    "time_problems",
)
load(":problem_asserts.bzl", "assert_accepted", "assert_refused")

def _lists_test_impl(ctx):
    env = unittest.begin(ctx)
    assert_accepted(env, lists_problems({"args": ["-x"], "data": [], "deps": select({"//conditions:default": ["//a"]})}))
    assert_refused(env, lists_problems({"data": [], "deps": None}), "deps = None\n", "It is a list", "drop it")
    assert_refused(env, lists_problems({"args": "-x"}), "args = \"-x\"\n", "in brackets")
    asserts.equals(env, 2, len(lists_problems({"args": None, "target_compatible_with": "//a"})))
    return unittest.end(env)

lists_test = unittest.make(_lists_test_impl)

def _shard_count_test_impl(ctx):
    env = unittest.begin(ctx)
    both = ["gloo", "nccl"]
    for right in [None, 1, 50, {}, {"gloo": 4}]:
        assert_accepted(env, shard_count_problems(right, both))
    for wrong in [0, -1, 51, "4", True]:
        assert_refused(env, shard_count_problems(wrong, both), "shard_count = {}\n".format(repr(wrong)), "1 to 50")
    assert_refused(env, shard_count_problems({"nccl": 0}, both), "shard_count[\"nccl\"] = 0\n")
    assert_refused(env, shard_count_problems({"mpi": 2}, both), "the key \"mpi\" is not in backends")
    return unittest.end(env)

shard_count_test = unittest.make(_shard_count_test_impl)

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
    assert_refused(env, exec_properties_problems({"test.": "large"}), "exec_properties: \"test.\" = \"large\"\n", "as in \"test.Pool\"")
    assert_refused(env, exec_properties_problems(["test.Pool"]), "It is a dict")
    assert_refused(env, exec_properties_problems(select({"//conditions:default": {}})), "= select(...)\n")
    return unittest.end(env)

exec_properties_test = unittest.make(_exec_properties_test_impl)

def _time_test_impl(ctx):
    env = unittest.begin(ctx)
    assert_accepted(env, time_problems(None, None))
    assert_accepted(env, time_problems("small", "short"))
    assert_refused(env, time_problems("huge", None), "size = \"huge\"", "small, medium, large, enormous")
    assert_refused(env, time_problems(None, "shrot"), "timeout = \"shrot\". Did you mean \"short\"?", "--test_timeout")
    assert_refused(env, time_problems(None, 60), "timeout = 60\n", "--test_timeout")
    asserts.equals(env, 2, len(time_problems("huge", 60)))
    return unittest.end(env)

time_test = unittest.make(_time_test_impl)

def _tags_test_impl(ctx):
    env = unittest.begin(ctx)
    assert_accepted(env, tags_problems(["manual", "cpu:2", "gpus", "distant", "no-cache"]))
    for right in ["cpu:1", "cpu:2147483647", "resources:cpu:0.5", "resources:cpu:2", "resources:cpus:x"]:
        assert_accepted(env, tags_problems([right]))
    for wrong in ["cpu:", "cpu:0", "cpu:02", "cpu:0.5", "cpu:x", "cpu:-1", "cpu:2147483648", "resources:cpu:", "resources:cpu:x", "resources:cpu:-1"]:
        assert_refused(env, tags_problems(["manual", wrong]), "tags = [\"manual\", \"{}\"]: \"{}\"\n".format(wrong, wrong), "cannot read")
    for twice in ["cpu:2", "resources:cpu:2"]:
        assert_refused(env, tags_problems(["cpu:1", twice]), ": \"cpu:1\" and \"{}\"\n".format(twice), "Keep one")
    for wrong in ["manual", None, [3]]:
        assert_refused(env, tags_problems(wrong), "tags = {}\n".format(repr(wrong)), "a list of texts")
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

def validate_targets_test_suite(*, name):
    """Declares the tests of this file and a suite of them.

    Args:
        name: Name of the suite.
    """
    tests = [
        attributes_test,
        exec_properties_test,
        lists_test,
        shard_count_test,
        tags_test,
        time_test,
    ]
    unittest.suite(name, *[partial.make(test, size = "small") for test in tests])
