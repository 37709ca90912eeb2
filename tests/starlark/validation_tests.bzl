"""What dist_py_test refuses: every text, and every value that is close to one and is right."""

load("@bazel_skylib//lib:partial.bzl", "partial")
load("@bazel_skylib//lib:unittest.bzl", "asserts", "unittest")
load("//backends:table.bzl", "BACKENDS")
load(
    "//dist_testing/private:validation.bzl",  # buildifier: disable=bzl-visibility
    "attributes_problems",
    "backends_problems",
    "env_problems",
    "gpu_total_problems",
    "gpus_per_rank_problems",
    "isolation_problems",
    "srcs_problems",
    "tags_problems",
    "time_problems",
    "world_size_problems",
)

def _assert_accepted(env, problems):
    asserts.equals(env, [], problems)

def _assert_refused(env, problems, *parts):
    """One text with three lines that has every part."""
    asserts.equals(env, 1, len(problems), "expected one text, got {}".format(problems))
    text = problems[0] if problems else ""
    asserts.equals(env, 3, len(text.split("\n")), "expected three lines: {}".format(text))
    for part in parts:
        asserts.true(env, part in text, "\"{}\" is not in: {}".format(part, text))

def _backends_test_impl(ctx):
    env = unittest.begin(ctx)
    _assert_accepted(env, backends_problems(["gloo", "nccl"], BACKENDS))
    _assert_refused(env, backends_problems([], BACKENDS), "backends = []", "at least one", "gloo, mpi")
    _assert_refused(env, backends_problems("gloo", BACKENDS), "backends = \"gloo\"", "A list")
    _assert_refused(env, backends_problems(None, BACKENDS), "backends = None")
    _assert_refused(env, backends_problems(["glo"], BACKENDS), "\"glo\" is not a backend", "Did you mean \"gloo\"?", "nccl")
    _assert_refused(env, backends_problems(["carrier_pigeon"], BACKENDS), "\"carrier_pigeon\" is not a backend.\n")
    _assert_refused(env, backends_problems([4], BACKENDS), "4 is not a backend")
    _assert_refused(env, backends_problems(["gloo", "gloo"], BACKENDS), "\"gloo\" is there twice", "Drop one")
    return unittest.end(env)

backends_test = unittest.make(_backends_test_impl)

def _world_size_test_impl(ctx):
    env = unittest.begin(ctx)
    both = ["gloo", "nccl"]
    for right in [1, 1024, [1, 2, 4], {"gloo": [2, 4], "nccl": 2}]:
        _assert_accepted(env, world_size_problems(right, both))
    for wrong in [0, -1, 1025, "two", "2", True, None, 2.0]:
        _assert_refused(env, world_size_problems(wrong, both), "world_size = {}\n".format(repr(wrong)), "1 to 1024")
        _assert_refused(env, world_size_problems([2, wrong], both), "world_size = {}\n".format(repr(wrong)))
        _assert_refused(
            env,
            world_size_problems({"gloo": 2, "nccl": wrong}, both),
            "world_size[\"nccl\"] = {}\n".format(repr(wrong)),
        )
    _assert_refused(env, world_size_problems([], both), "world_size = []", "no case would run")
    _assert_refused(env, world_size_problems([2, 4, 2], both), "2 is there twice")
    _assert_refused(env, world_size_problems({"gloo": 2}, both), "nothing for \"nccl\"", "Add \"nccl\"")
    _assert_refused(
        env,
        world_size_problems({"gloo": 2, "mpi": 2, "nccl": 2}, both),
        "the key \"mpi\" is not in backends",
    )
    asserts.equals(env, 2, len(world_size_problems([0, -1], both)))
    return unittest.end(env)

world_size_test = unittest.make(_world_size_test_impl)

def _gpus_per_rank_test_impl(ctx):
    env = unittest.begin(ctx)
    for right in [None, {"nccl": 2}, {"gloo": 0, "nccl": 1}]:
        _assert_accepted(env, gpus_per_rank_problems(right, ["gloo", "nccl"], BACKENDS))
    _assert_accepted(env, gpus_per_rank_problems(0, ["gloo"], BACKENDS))
    _assert_accepted(env, gpus_per_rank_problems(2, ["nccl", "cuda_gloo"], BACKENDS))
    _assert_refused(
        env,
        gpus_per_rank_problems(1, ["gloo", "nccl"], BACKENDS),
        "gpus_per_rank = 1 with backend \"gloo\"",
        "kept idle",
        "a dict that names the GPU backends only",
    )
    _assert_refused(
        env,
        gpus_per_rank_problems({"gloo": 3}, ["gloo"], BACKENDS),
        "gpus_per_rank[\"gloo\"] = 3 with backend \"gloo\"",
    )
    for wrong in [-1, "1", True, [1]]:
        _assert_refused(
            env,
            gpus_per_rank_problems(wrong, ["nccl"], BACKENDS),
            "gpus_per_rank = {}\n".format(repr(wrong)),
            "0 or more",
        )
    _assert_refused(env, gpus_per_rank_problems(0, ["nccl"], BACKENDS), "= 0 with backend \"nccl\"", "default of 1")
    _assert_refused(
        env,
        gpus_per_rank_problems({"nccl": 1}, ["gloo"], BACKENDS),
        "the key \"nccl\" is not in backends",
    )
    return unittest.end(env)

gpus_per_rank_test = unittest.make(_gpus_per_rank_test_impl)

def _gpu_total_test_impl(ctx):
    env = unittest.begin(ctx)
    _assert_accepted(env, gpu_total_problems("nccl", 16, 1))
    _assert_accepted(env, gpu_total_problems("gloo", 1024, 0))
    _assert_refused(
        env,
        gpu_total_problems("nccl", 9, 2),
        "backend \"nccl\": world_size 9 x gpus_per_rank 2 = 18 GPUs",
        "none has more than 16",
    )
    return unittest.end(env)

gpu_total_test = unittest.make(_gpu_total_test_impl)

def _srcs_test_impl(ctx):
    env = unittest.begin(ctx)
    _assert_accepted(env, srcs_problems(["a.py", ":b.py", "//c:d.py"]))
    _assert_refused(env, srcs_problems([]), "srcs = []", "at least one Python file")
    _assert_refused(env, srcs_problems(None), "srcs = None")
    _assert_refused(env, srcs_problems("a.py"), "srcs = \"a.py\"", "A list")
    _assert_refused(env, srcs_problems(["a.py", "b.txt"]), "\"b.txt\" is not a Python file", "data files in data")
    _assert_refused(env, srcs_problems([":library"]), "\":library\" is not a Python file", "other targets in deps")
    _assert_refused(env, srcs_problems([3]), "3 is not a Python file")
    return unittest.end(env)

srcs_test = unittest.make(_srcs_test_impl)

def _isolation_test_impl(ctx):
    env = unittest.begin(ctx)
    _assert_accepted(env, isolation_problems("fork"))
    _assert_refused(env, isolation_problems("frok"), "isolation = \"frok\". Did you mean \"fork\"?", "Use one of: fork, spawn, pool.")
    _assert_refused(env, isolation_problems(None), "isolation = None\n")
    return unittest.end(env)

isolation_test = unittest.make(_isolation_test_impl)

def _time_test_impl(ctx):
    env = unittest.begin(ctx)
    _assert_accepted(env, time_problems(None, None))
    _assert_accepted(env, time_problems("small", "short"))
    _assert_refused(env, time_problems("huge", None), "size = \"huge\"", "small, medium, large, enormous")
    _assert_refused(env, time_problems(None, "shrot"), "timeout = \"shrot\". Did you mean \"short\"?", "--test_timeout")
    _assert_refused(env, time_problems(None, 60), "timeout = 60\n", "--test_timeout")
    asserts.equals(env, 2, len(time_problems("huge", 60)))
    return unittest.end(env)

time_test = unittest.make(_time_test_impl)

def _tags_test_impl(ctx):
    env = unittest.begin(ctx)
    _assert_accepted(env, tags_problems(["manual", "cpu:2", "gpus", "distant", "no-cache"]))
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
        _assert_refused(env, tags_problems(["manual", reserved]), "\"{}\" is set by dist_py_test".format(reserved))
    return unittest.end(env)

tags_test = unittest.make(_tags_test_impl)

def _env_test_impl(ctx):
    env = unittest.begin(ctx)
    _assert_accepted(env, env_problems({"MY_RANK": "1", "NCCL_DEBUG": "INFO", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}))
    for reserved in ["DIST_TESTING_SPEC", "MASTER_PORT", "RANK", "TEST_SHARD_INDEX", "WORLD_SIZE", "XML_OUTPUT_FILE"]:
        _assert_refused(env, env_problems({reserved: "x"}), "env: {} = \"x\"".format(reserved), "Drop it")
    return unittest.end(env)

env_test = unittest.make(_env_test_impl)

def _attributes_test_impl(ctx):
    env = unittest.begin(ctx)
    _assert_accepted(env, attributes_problems({"flaky": True, "shard_count": 2}))
    for reserved in ["main", "main_module", "srcs_version"]:
        _assert_refused(env, attributes_problems({reserved: "x"}), "{} = \"x\"\n".format(reserved), "Drop it")
    return unittest.end(env)

attributes_test = unittest.make(_attributes_test_impl)

def validation_test_suite(*, name):
    """Declares the tests of this file and a suite of them.

    Args:
        name: Name of the suite.
    """
    tests = [
        attributes_test,
        backends_test,
        env_test,
        gpu_total_test,
        gpus_per_rank_test,
        isolation_test,
        srcs_test,
        tags_test,
        time_test,
        world_size_test,
    ]
    unittest.suite(name, *[partial.make(test, size = "small") for test in tests])
