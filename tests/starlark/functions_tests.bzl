"""Small functions without targets: suggestions, tags, device names."""

load("@bazel_skylib//lib:partial.bzl", "partial")
load("@bazel_skylib//lib:unittest.bzl", "asserts", "unittest")
load("//backends:table.bzl", "BACKENDS")
load("//dist_testing/private:host_facts.bzl", "amd_model", "driver_major", "nvidia_information", "nvidia_minors", "nvidia_models")  # buildifier: disable=bzl-visibility
load("//dist_testing/private:suggest.bzl", "edit_distance", "suggestion")  # buildifier: disable=bzl-visibility
load("//dist_testing/private:tags.bzl", "dist_tags")  # buildifier: disable=bzl-visibility

def _edit_distance_test_impl(ctx):
    env = unittest.begin(ctx)
    for a, b, expected in [("", "", 0), ("", "abc", 3), ("gloo", "gloo", 0), ("ncl", "nccl", 1), ("gloo", "ucc", 4)]:
        asserts.equals(env, expected, edit_distance(a, b))
        asserts.equals(env, expected, edit_distance(b, a))
    return unittest.end(env)

edit_distance_test = unittest.make(_edit_distance_test_impl)

def _suggestion_test_impl(ctx):
    env = unittest.begin(ctx)
    asserts.equals(env, " Did you mean \"nccl\"?", suggestion("NCLL", BACKENDS))
    asserts.equals(env, " Did you mean \"cuda_gloo\"?", suggestion("cuda", BACKENDS))
    asserts.equals(env, "", suggestion("carrier_pigeon", BACKENDS))
    asserts.equals(env, "", suggestion("", BACKENDS))
    return unittest.end(env)

suggestion_test = unittest.make(_suggestion_test_impl)

def _tags(backend, *, world_sizes, gpu_archs = [], gpus = 0, isolation = "fork", jobs = 1, nodes = 1, user_tags = []):
    return dist_tags(
        backend = BACKENDS[backend],
        gpu_archs = gpu_archs,
        gpus = gpus,
        isolation = isolation,
        jobs = jobs,
        nodes = nodes,
        user_tags = user_tags,
        world_sizes = world_sizes,
    )

def _cpu_tags_test_impl(ctx):
    env = unittest.begin(ctx)
    asserts.equals(
        env,
        ["backend:gloo", "cpu:4", "dist", "mine", "resources:memory:310", "world_size:2", "world_size:4"],
        _tags("gloo", user_tags = ["mine"], world_sizes = [2, 4]),
    )
    asserts.equals(
        env,
        ["backend:gloo", "cpu:4", "dist", "nodes:2", "requires-netns", "resources:memory:310", "world_size:4"],
        _tags("gloo", nodes = 2, world_sizes = [4]),
    )
    asserts.equals(
        env,
        ["backend:gloo", "cpu:1", "dist", "resources:memory:1210", "world_size:64"],
        _tags("gloo", user_tags = ["cpu:1"], world_sizes = [64]),
    )
    asserts.equals(
        env,
        ["backend:gloo", "dist", "resources:cpu:0.5", "resources:memory:7", "world_size:64"],
        _tags("gloo", user_tags = ["resources:cpu:0.5", "resources:memory:7"], world_sizes = [64]),
    )

    # Threads take turns in one interpreter: a target of 128 would otherwise run alone.
    asserts.equals(
        env,
        ["backend:threaded", "cpu:1", "dist", "resources:memory:378", "world_size:128"],
        _tags("threaded", isolation = "thread", world_sizes = [128]),
    )

    # Four worlds at once.
    asserts.equals(
        env,
        ["backend:gloo", "cpu:8", "dist", "resources:memory:610", "world_size:2"],
        _tags("gloo", jobs = 4, world_sizes = [2]),
    )
    asserts.equals(
        env,
        ["backend:threaded", "cpu:4", "dist", "resources:memory:498", "world_size:2"],
        _tags("threaded", isolation = "thread", jobs = 4, world_sizes = [2]),
    )
    return unittest.end(env)

cpu_tags_test = unittest.make(_cpu_tags_test_impl)

def _gpu_tags_test_impl(ctx):
    env = unittest.begin(ctx)
    asserts.equals(
        env,
        [
            "backend:nccl",
            "cpu:1",
            "dist",
            "gpu",
            "gpu_arch:sm_80",
            "gpu_arch:sm_90",
            "gpus:1",
            "gpus_ge_1",
            "no-sandbox",
            "requires-gpu-nvidia",
            "requires-gpu-nvidia:1",
            "resources:gpu:1",
            "resources:memory:1420",
            "world_size:1",
        ],
        _tags("nccl", gpu_archs = ["sm_80", "sm_90"], gpus = 1, isolation = "spawn", world_sizes = [1]),
    )
    six = _tags("xccl", gpus = 6, world_sizes = [3])
    asserts.equals(
        env,
        ["gpus:6"] + ["gpus_ge_{}".format(step) for step in range(1, 7)] +
        ["multi_gpu", "requires-gpu-intel", "requires-gpu-intel:6"],
        [tag for tag in six if tag.startswith(("gpus", "multi", "requires"))],
    )
    return unittest.end(env)

gpu_tags_test = unittest.make(_gpu_tags_test_impl)

def _nvidia_facts_test_impl(ctx):
    env = unittest.begin(ctx)
    asserts.equals(env, [], nvidia_minors([]))
    asserts.equals(env, [], nvidia_minors(["nvidia", "nvidia-caps", "nvidia-uvm", "nvidiactl", "null", "nvme0"]))
    asserts.equals(env, [0, 1, 10], nvidia_minors(["nvidia0", "nvidia1", "nvidia10", "nvidiactl"]))
    information = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 120\nBus Location: \t 0000:19:00.0\nDevice Minor: \t 3\n"
    asserts.equals(env, (3, "NVIDIA H200"), nvidia_information(information))
    asserts.equals(env, (None, "unknown"), nvidia_information(""))
    asserts.equals(env, (None, "unknown"), nvidia_information("Model:\nDevice Minor: none\n"))

    # A node without a GPU, a GPU without a node, a GPU that is lost, and files that a container hides.
    asserts.equals(env, {1: "B"}, nvidia_models([0, 1], [(1, "B"), (2, "C")]))
    asserts.equals(env, {0: "unknown", 1: "B"}, nvidia_models([0, 1], [(1, "B"), (None, "unknown")]))
    asserts.equals(env, {0: "unknown", 1: "unknown"}, nvidia_models([0, 1], []))
    return unittest.end(env)

nvidia_facts_test = unittest.make(_nvidia_facts_test_impl)

def _driver_major_test_impl(ctx):
    env = unittest.begin(ctx)
    for text, expected in [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\nGCC version: gcc 12.3.0\n", "550"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n", "580"),
        ("6.10.5\n", "6"),
        ("", "unknown"),
        ("version 7 of something. 8th", "unknown"),
    ]:
        asserts.equals(env, expected, driver_major(text))
    return unittest.end(env)

driver_major_test = unittest.make(_driver_major_test_impl)

def _amd_model_test_impl(ctx):
    env = unittest.begin(ctx)
    asserts.equals(env, "gfx942", amd_model("simd_count 1216\ngfx_target_version 90402\nvendor_id 4098\n"))
    asserts.equals(env, "gfx90a", amd_model("gfx_target_version 90010\n"))
    asserts.equals(env, "unknown", amd_model("gfx_target_version 0\n"))
    asserts.equals(env, "unknown", amd_model(""))
    return unittest.end(env)

amd_model_test = unittest.make(_amd_model_test_impl)

def functions_test_suite(*, name):
    """Declares the tests of this file and a suite of them.

    Args:
        name: Name of the suite.
    """
    tests = [
        amd_model_test,
        cpu_tags_test,
        driver_major_test,
        edit_distance_test,
        gpu_tags_test,
        nvidia_facts_test,
        suggestion_test,
    ]
    unittest.suite(name, *[partial.make(test, size = "small") for test in tests])
