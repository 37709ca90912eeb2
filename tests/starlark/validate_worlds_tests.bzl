"""Error texts of dist_py_test about ranks, and values that are nearly wrong and right."""

load("@bazel_skylib//lib:partial.bzl", "partial")
load("@bazel_skylib//lib:unittest.bzl", "asserts", "unittest")
load("//backends:table.bzl", "BACKENDS")
load("//dist_testing/private:gpu_archs.bzl", "UNKNOWN_ARCH", "gpu_archs_problems", "nvidia_arch")  # buildifier: disable=bzl-visibility
load("//dist_testing/private:validate_jobs.bzl", "jobs_problems")  # buildifier: disable=bzl-visibility
load(
    "//dist_testing/private:validate_worlds.bzl",  # buildifier: disable=bzl-visibility
    "gpu_total_problems",
    "gpus_per_rank_problems",
    "isolation_problems",
    "nodes_problems",
    "ranks_per_gpu_problems",
    "world_size_problems",
)
load(":problem_asserts.bzl", "assert_accepted", "assert_refused")

def _world_size_test_impl(ctx):
    env = unittest.begin(ctx)
    both = ["gloo", "nccl"]
    for right in [1, 1024, [1, 2, 4], {"gloo": [2, 4], "nccl": 2}]:
        assert_accepted(env, world_size_problems(right, both))
    for wrong in [0, -1, 1025, "two", "2", True, None, 2.0]:
        assert_refused(env, world_size_problems(wrong, both), "world_size = {}\n".format(repr(wrong)), "1 to 1024")
        assert_refused(env, world_size_problems([2, wrong], both), "world_size = [2, {}]: {} is none.\n".format(repr(wrong), repr(wrong)))
        assert_refused(
            env,
            world_size_problems({"gloo": 2, "nccl": wrong}, both),
            "world_size[\"nccl\"] = {}\n".format(repr(wrong)),
        )
    assert_refused(env, world_size_problems([[2]], both), "world_size = [[2]]: [2] is none.\n", "1 to 1024")
    assert_refused(env, world_size_problems([], both), "world_size = []", "no case would run")
    assert_refused(env, world_size_problems([2, 4, 2], both), "2 is there twice")
    assert_refused(env, world_size_problems({"gloo": 2}, both), "nothing for \"nccl\"", "Add \"nccl\"")
    assert_refused(
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
        assert_accepted(env, gpus_per_rank_problems(right, ["gloo", "nccl"], BACKENDS))
    assert_accepted(env, gpus_per_rank_problems(0, ["gloo"], BACKENDS))
    assert_accepted(env, gpus_per_rank_problems(2, ["nccl", "cuda_gloo"], BACKENDS))
    assert_refused(
        env,
        gpus_per_rank_problems(1, ["gloo", "nccl"], BACKENDS),
        "gpus_per_rank = 1 with backend \"gloo\"",
        "kept idle",
        "a dict that names the GPU backends only",
    )
    assert_refused(
        env,
        gpus_per_rank_problems({"gloo": 3}, ["gloo"], BACKENDS),
        "gpus_per_rank[\"gloo\"] = 3 with backend \"gloo\"",
    )
    assert_refused(
        env,
        gpus_per_rank_problems(1, ["threaded"], BACKENDS),
        "gpus_per_rank = 1 with backend \"threaded\"",
    )
    for wrong in [-1, "1", True, [1]]:
        assert_refused(
            env,
            gpus_per_rank_problems(wrong, ["nccl"], BACKENDS),
            "gpus_per_rank = {}\n".format(repr(wrong)),
            "0 or more",
        )
    assert_refused(env, gpus_per_rank_problems(0, ["nccl"], BACKENDS), "= 0 with backend \"nccl\"", "default of 1")
    assert_refused(
        env,
        gpus_per_rank_problems({"nccl": 1}, ["gloo"], BACKENDS),
        "the key \"nccl\" is not in backends",
    )
    return unittest.end(env)

gpus_per_rank_test = unittest.make(_gpus_per_rank_test_impl)

def _ranks_per_gpu_test_impl(ctx):
    env = unittest.begin(ctx)
    for right in [None, {}, 1, {"cuda_gloo": 4, "nccl": 2}]:
        assert_accepted(env, ranks_per_gpu_problems(right, ["gloo", "cuda_gloo", "nccl"], BACKENDS))
    assert_refused(
        env,
        ranks_per_gpu_problems(2, ["rccl"], BACKENDS),
        "ranks_per_gpu = 2 with backend \"rccl\"",
        "a dict that names only cuda_gloo, gloo_nccl, nccl,",
    )
    assert_refused(env, ranks_per_gpu_problems(2, ["gloo"], BACKENDS), "or it is for the CPU")
    for wrong in [0, -1, "1", True, [1]]:
        assert_refused(
            env,
            ranks_per_gpu_problems(wrong, ["cuda_gloo"], BACKENDS),
            "ranks_per_gpu = {}\n".format(repr(wrong)),
            "1 or more",
        )
    assert_refused(
        env,
        ranks_per_gpu_problems({"cuda_gloo": 2}, ["gloo"], BACKENDS),
        "the key \"cuda_gloo\" is not in backends",
    )
    return unittest.end(env)

ranks_per_gpu_test = unittest.make(_ranks_per_gpu_test_impl)

def _gpu_archs_test_impl(ctx):
    env = unittest.begin(ctx)
    for right in [None, {}, ["sm_90"], {"nccl": ["sm_80", "sm_90"], "rccl": ["gfx942"]}]:
        assert_accepted(env, gpu_archs_problems(right, ["nccl", "rccl"] if type(right) == "dict" else ["nccl"], BACKENDS))
    for wrong in ["sm_90", [], 90, {"sm_90": 1}]:
        problems = gpu_archs_problems({"nccl": wrong}, ["nccl"], BACKENDS)
        assert_refused(env, problems, "gpu_archs[\"nccl\"] = {}\n".format(repr(wrong)), "[\"sm_90\"]")
    for archs, backend, parts in [
        (["sm90"], "nccl", ["\"sm90\" is no architecture of nvidia", "Did you mean \"sm_90\"?"]),
        ([90], "nccl", ["90 is no architecture of nvidia"]),
        (["sm_90"], "rccl", ["\"sm_90\" is no architecture of amd", "gfx942"]),
        (["sm_90"], "xccl", ["is no architecture of intel", "Drop it"]),
        (["sm_90"], "gloo", ["with backend \"gloo\"", "own no GPU", "use a dict"]),
    ]:
        assert_refused(env, gpu_archs_problems(archs, [backend], BACKENDS), *parts)
    assert_refused(env, gpu_archs_problems({"nccl": ["sm_90"]}, ["gloo"], BACKENDS), "the key \"nccl\" is not in backends")
    for model, arch in [
        ("NVIDIA A100-SXM4-80GB", "sm_80"),
        ("NVIDIA H100 80GB HBM3", "sm_90"),
        ("NVIDIA GeForce RTX 4090", "sm_89"),
        ("NVIDIA RTX 6000 Ada Generation", "sm_89"),
        ("Quadro RTX 6000", UNKNOWN_ARCH),
    ]:
        asserts.equals(env, arch, nvidia_arch(model))
    return unittest.end(env)

gpu_archs_test = unittest.make(_gpu_archs_test_impl)

def _gpu_total_test_impl(ctx):
    env = unittest.begin(ctx)
    assert_accepted(env, gpu_total_problems("nccl", 16, 1))
    assert_accepted(env, gpu_total_problems("gloo", 1024, 0))
    assert_refused(
        env,
        gpu_total_problems("nccl", 9, 2),
        "backend \"nccl\": world_size 9 x gpus_per_rank 2 = 18 GPUs",
        "none has more than 16",
    )
    assert_accepted(env, gpu_total_problems("cuda_gloo", 64, 1, 4))
    assert_refused(
        env,
        gpu_total_problems("cuda_gloo", 64, 1, 2),
        "world_size 64 / ranks_per_gpu 2 = 32 GPUs",
        "raise ranks_per_gpu",
    )
    assert_refused(env, gpu_total_problems("cuda_gloo", 4, 2, 2), "ranks_per_gpu = 2 and gpus_per_rank = 2")
    return unittest.end(env)

gpu_total_test = unittest.make(_gpu_total_test_impl)

def _isolation_test_impl(ctx):
    env = unittest.begin(ctx)
    both = ["gloo", "threaded"]
    for right in [None, {}, {"gloo": "spawn"}, {"gloo": "pool", "threaded": "thread"}]:
        assert_accepted(env, isolation_problems(right, both, BACKENDS))
    assert_accepted(env, isolation_problems("fork", ["gloo", "nccl"], BACKENDS))
    assert_refused(
        env,
        isolation_problems("frok", both, BACKENDS),
        "isolation = \"frok\". Did you mean \"fork\"?",
        "Use one of: fork, spawn, pool, thread.",
    )
    assert_refused(env, isolation_problems(3, both, BACKENDS), "isolation = 3\n")
    assert_refused(env, isolation_problems({"gloo": "x"}, both, BACKENDS), "isolation[\"gloo\"] = \"x\"\n")
    assert_refused(env, isolation_problems({"nccl": "fork"}, both, BACKENDS), "the key \"nccl\" is not in backends")
    assert_refused(
        env,
        isolation_problems("fork", both, BACKENDS),
        "isolation = \"fork\" with backend \"threaded\"\n",
        "lives inside one process",
        "one of: thread; isolation may be a dict",
    )
    assert_refused(
        env,
        isolation_problems({"gloo": "thread"}, both, BACKENDS),
        "isolation[\"gloo\"] = \"thread\" with backend \"gloo\"\n",
        "cannot be its ranks",
        "one of: fork, spawn, pool;",
    )
    return unittest.end(env)

isolation_test = unittest.make(_isolation_test_impl)

def _target(backend, *, world_sizes, gpus = 0, isolation = "fork"):
    return struct(backend = BACKENDS[backend], gpus = gpus, isolation = isolation, world_sizes = world_sizes)

def _nodes_test_impl(ctx):
    env = unittest.begin(ctx)
    fits = _target("gloo", world_sizes = [2, 4])
    assert_accepted(env, nodes_problems(1, [_target("threaded", isolation = "thread", world_sizes = [3])]))
    assert_accepted(env, nodes_problems(2, [fits]))
    for wrong in [0, -1, "1", True, None, 65]:
        assert_refused(env, nodes_problems(wrong, [fits]), "nodes = {}\n".format(repr(wrong)), "from 1 to 64")
    assert_refused(
        env,
        nodes_problems(2, [fits, _target("gloo", world_sizes = [3])]),
        "nodes = 2 with world_size = 3\n",
        "must divide",
        "world_size = 4",
    )
    assert_refused(
        env,
        nodes_problems(2, [_target("threaded", isolation = "thread", world_sizes = [4])]),
        "nodes = 2 with backend \"threaded\"\n",
        "threads of one process",
    )
    assert_refused(
        env,
        nodes_problems(2, [_target("nccl", gpus = 4, world_sizes = [4])]),
        "nodes = 2 with backend \"nccl\"\n",
        "share the GPUs",
    )
    return unittest.end(env)

nodes_test = unittest.make(_nodes_test_impl)

def _jobs_test_impl(ctx):
    env = unittest.begin(ctx)
    both = ["gloo", "nccl"]
    for right in [None, 1, {"gloo": 64}, {"gloo": 4, "nccl": 1}]:
        assert_accepted(env, jobs_problems(right, both, BACKENDS))
    for wrong in [0, -1, "auto", True, 65]:
        assert_refused(env, jobs_problems(wrong, ["gloo"], BACKENDS), "jobs = {}\n".format(repr(wrong)), "from 1 to 64")
    assert_refused(env, jobs_problems(2, both, BACKENDS), "jobs = 2 with backend \"nccl\"\n", "the GPUs of one world")
    assert_refused(env, jobs_problems({"mpi": 2}, both, BACKENDS), "jobs = {\"mpi\": 2}: the key \"mpi\" is not in backends")
    return unittest.end(env)

jobs_test = unittest.make(_jobs_test_impl)

def validate_worlds_test_suite(*, name):
    """Declares the tests of this file and a suite of them.

    Args:
        name: Name of the suite.
    """
    tests = [
        gpu_archs_test,
        gpu_total_test,
        gpus_per_rank_test,
        isolation_test,
        jobs_test,
        nodes_test,
        ranks_per_gpu_test,
        world_size_test,
    ]
    unittest.suite(name, *[partial.make(test, size = "small") for test in tests])
