"""Remote executors: the pool of a target, its properties, and the errors of declarations."""

load("@bazel_skylib//lib:partial.bzl", "partial")
load("@bazel_skylib//lib:unittest.bzl", "asserts", "unittest")
load("//dist_testing/private:executors.bzl", "KINDS", "capacity_text", "largest_pools", "pool_for", "test_exec_properties")  # buildifier: disable=bzl-visibility
load("//dist_testing/private:executors_repo.bzl", "chosen_executor")  # buildifier: disable=bzl-visibility

def _pool(name, gpus = 0, vendor = "nvidia", properties = {}, gpu_arch = "", remote = ""):
    return {"gpu_arch": gpu_arch, "gpus": gpus, "name": name, "properties": properties, "remote": remote, "vendor": vendor if gpus else ""}

def _problems(kinds, pools, chosen = ""):
    remotes = []
    for declared in kinds:
        kind, _, name = declared.partition(" ")
        remotes.append({"kind": kind, "name": name or kind})
    return chosen_executor(remotes, pools, chosen)[2]

_POOLS = [_pool("cpu"), _pool("eight", 8), _pool("two", 2), _pool("amd4", 4, "amd")]

def _pool_for_test_impl(ctx):
    env = unittest.begin(ctx)
    for vendor, gpus, expected in [
        ("", 0, "cpu"),
        ("nvidia", 1, "two"),
        ("nvidia", 2, "two"),
        ("nvidia", 3, "eight"),
        ("amd", 4, "amd4"),
    ]:
        asserts.equals(env, expected, pool_for(_POOLS, vendor, gpus, [])["name"])
    asserts.equals(env, None, pool_for(_POOLS, "nvidia", 9, []))
    asserts.equals(env, None, pool_for(_POOLS, "intel", 1, []))
    asserts.equals(env, None, pool_for([_pool("two", 2)], "", 0, []))

    # Pools of one size and different models.
    models = [_pool("h100", 8, gpu_arch = "sm_90"), _pool("a100", 8, gpu_arch = "sm_80"), _pool("two", 2)]
    for gpus, archs, expected in [
        (8, [], "h100"),
        (8, ["sm_80"], "a100"),
        (1, ["sm_80", "sm_90"], "h100"),
        (1, [], "two"),
    ]:
        asserts.equals(env, expected, pool_for(models, "nvidia", gpus, archs)["name"])
    asserts.equals(env, None, pool_for(models, "nvidia", 1, ["sm_100"]))
    asserts.equals(env, {"amd": 4, "nvidia": 8}, largest_pools(_POOLS))

    # One executor with the GPUs of three vendors: only the target's own vendor counts, whatever the sizes.
    mixed = [
        _pool("amd8", 8, "amd", gpu_arch = "gfx942"),
        _pool("amd8_old", 8, "amd", gpu_arch = "gfx90a"),
        _pool("intel4", 4, "intel"),
        _pool("nvidia8", 8),
    ]
    for vendor, gpus, archs, expected in [
        ("amd", 1, [], "amd8"),
        ("amd", 8, ["gfx90a"], "amd8_old"),
        ("intel", 2, [], "intel4"),
        ("nvidia", 1, [], "nvidia8"),
    ]:
        asserts.equals(env, expected, pool_for(mixed, vendor, gpus, archs)["name"])
    asserts.equals(env, None, pool_for(mixed, "intel", 8, []))
    asserts.equals(env, None, pool_for(mixed, "amd", 1, ["gfx1100"]))
    asserts.equals(env, None, pool_for(mixed, "", 0, []))
    return unittest.end(env)

pool_for_test = unittest.make(_pool_for_test_impl)

def _properties_test_impl(ctx):
    env = unittest.begin(ctx)
    expected = {
        "buildbarn": {"test.image": "cuda"},
        "buildbuddy": {"test.Pool": "two", "test.image": "cuda", "test.resources:gpu": "1"},
        "buildgrid": {"test.Pool": "two", "test.image": "cuda"},
        "engflow": {"test.Pool": "two", "test.image": "cuda"},
        "nativelink": {"test.gpu_count": "1", "test.image": "cuda"},
    }
    asserts.equals(env, sorted(expected), sorted(KINDS))
    for kind, properties in expected.items():
        executors = {"kind": kind, "pools": [_pool("two", 2, properties = {"image": "cuda"})]}
        asserts.equals(env, properties, test_exec_properties(executors, "nvidia", 1, []))

        # A build action with one of these would wait for a GPU worker.
        for pools in [_POOLS, executors["pools"]]:
            for vendor, gpus in [("", 0), ("nvidia", 2), ("nvidia", 16)]:
                for key in test_exec_properties({"kind": kind, "pools": pools}, vendor, gpus, []):
                    asserts.true(env, key.startswith("test."), key)

        # Two models, and another vendor: what distinguishes the pools arrives at the executor.
        models = [
            _pool("mi300", 8, "amd", {"image": "new"}, "gfx942"),
            _pool("mi250", 8, "amd", {"image": "old"}, "gfx90a"),
            _pool("max", 8, "intel", {"image": "xpu"}),
        ]
        for vendor, archs, image in [("amd", ["gfx90a"], "old"), ("amd", [], "new"), ("intel", [], "xpu")]:
            found = test_exec_properties({"kind": kind, "pools": models}, vendor, 2, archs)
            asserts.equals(env, image, found["test.image"])
    asserts.equals(env, {}, test_exec_properties({"kind": "", "pools": []}, "nvidia", 1, []))
    asserts.equals(env, {"test.Pool": "cpu"}, test_exec_properties({"kind": "engflow", "pools": _POOLS}, "", 0, []))
    return unittest.end(env)

properties_test = unittest.make(_properties_test_impl)

def _capacity_test_impl(ctx):
    env = unittest.begin(ctx)
    text = capacity_text("//a:b_nccl", "nvidia", 9, [], _POOLS)
    asserts.equals(env, 3, len(text.split("\n")))
    for part in ["//a:b_nccl: needs 9 GPU(s) of nvidia", "\"eight\" (8 nvidia), \"two\" (2 nvidia), \"amd4\" (4 amd).", "would never start"]:
        asserts.true(env, part in text, text)
    asserts.true(env, "no pool with GPUs" in capacity_text("//a:b", "nvidia", 1, [], [_pool("cpu")]))
    text = capacity_text("//a:b", "nvidia", 1, ["sm_90", "sm_100"], [_pool("old", 8, gpu_arch = "sm_70")])
    for part in ["1 GPU(s) of nvidia with architecture sm_90 or sm_100", "\"old\" (8 nvidia sm_70)", "(gpus, gpu_arch)"]:
        asserts.true(env, part in text, text)
    return unittest.end(env)

capacity_test = unittest.make(_capacity_test_impl)

def _declaration_test_impl(ctx):
    env = unittest.begin(ctx)
    asserts.equals(env, [], _problems([], []))
    asserts.equals(env, [], _problems(["buildbuddy"], _POOLS))
    asserts.equals(env, [], _problems(["nativelink"], [_pool("two", 2)]))
    asserts.equals(env, [], _problems(["buildbarn"], [_pool("two", 2, properties = {"Pool": "a"})]))
    models = [_pool("a", 8, gpu_arch = "sm_90"), _pool("b", 8, gpu_arch = "sm_80")]
    asserts.equals(env, [], _problems(["engflow"], models))

    # The same number of GPUs of several vendors, and of several models of one.
    vendors = [_pool("c", 8, "amd", gpu_arch = "gfx942"), _pool("d", 8, "amd", gpu_arch = "gfx90a"), _pool("e", 8, "intel")]
    asserts.equals(env, [], _problems(["engflow"], models + vendors))
    negative = _pool("a", -1)

    # Two executors have pools of one size.
    two = ["buildgrid", "nativelink cloud"]
    theirs = [_pool("two", 2, remote = "buildgrid"), _pool("gpu2", 2, remote = "cloud")]
    asserts.equals(env, [], _problems(two, theirs))
    remotes = [{"kind": "buildgrid", "name": "buildgrid"}, {"kind": "nativelink", "name": "cloud"}]
    asserts.equals(env, ("buildgrid", [theirs[0]], []), chosen_executor(remotes, theirs, ""))
    asserts.equals(env, ("nativelink", [theirs[1]], []), chosen_executor(remotes, theirs, "cloud"))
    for kinds, pools, parts in [
        (["engflow", "engflow"], [], ["executors.remote(name = \"engflow\") is there twice", "a name of its own"]),
        (two, [_pool("a")], ["\"a\"): remote = \"\"", "belongs to one of the executors", "buildgrid, cloud"]),
        (two, [_pool("a", remote = "clout")], ["remote = \"clout\". Did you mean \"cloud\"?"]),
        (two, theirs + [_pool("b", 2, remote = "cloud")], ["\"b\") and \"gpu2\" both have 2 GPU(s)"]),
        ([], [_pool("a")], ["executors.pool(name = \"a\") without executors.remote()", "Add executors.remote"]),
        (["bildgrid"], [], ["kind = \"bildgrid\". Did you mean \"buildgrid\"?", "buildbarn, buildbuddy, buildgrid"]),
        (["engflow"], [_pool("")], ["executors.pool(name = \"\")"]),
        (["engflow"], [_pool("a"), _pool("a", 2)], ["\"a\") is there twice"]),
        (["engflow"], [_pool("a", 2), _pool("b", 2)], ["\"b\") and \"a\" both have 2 GPU(s) of nvidia.", "equally small"]),
        (["engflow"], [models[0], _pool("c", 8, gpu_arch = "sm_90")], ["both have 8 GPU(s) of nvidia sm_90."]),
        (["engflow"], [_pool("a", gpu_arch = "sm_90")], ["gpu_arch = \"sm_90\" without gpus"]),
        (["engflow"], [_pool("a", 2, gpu_arch = "sm90")], ["gpu_arch = \"sm90\". Did you mean \"sm_90\"?"]),
        (["engflow"], [_pool("a", 2, "amd", gpu_arch = "sm_90")], ["gpu_arch = \"sm_90\"", "Use one of: gfx908, "]),
        (["engflow"], [_pool("a", 2, "intel", gpu_arch = "xe")], ["gpu_arch = \"xe\" with vendor = \"intel\"", "Drop it"]),
        (["engflow"], [_pool("a", 2, "intel"), _pool("b", 2, "intel")], ["both have 2 GPU(s) of intel.", "Drop one. A"]),
        (["engflow"], [_pool("a", 2, "amd"), _pool("b", 2, "amd")], ["2 GPU(s) of amd.", "or tell them apart by gpu_arch"]),
        (["engflow"], [_pool("a", 17)], ["gpus = 17", "up to 16"]),
        (["engflow"], [negative], ["gpus = -1"]),
        (["engflow"], [_pool("a", 2, "nvida")], ["vendor = \"nvida\". Did you mean \"nvidia\"?"]),
        (["engflow"], [_pool("a") | {"vendor": "amd"}], ["vendor = \"amd\" without gpus"]),
        (["engflow"], [_pool("a", properties = {"Pool": "b"})], ["properties has \"Pool\"", "Drop it"]),
        (["engflow"], [_pool("a", properties = {"test.image": "b"})], ["properties has \"test.image\"", "Write \"image\""]),
        (["nativelink"], [_pool("a", 2, properties = {"gpu_count": "2"})], ["properties has \"gpu_count\""]),
        (["buildbarn"], [_pool("a", 2)], ["properties is empty", "buildbarn has no property that names a pool"]),
    ]:
        problems = _problems(kinds, pools)
        asserts.equals(env, 1, len(problems), "{}".format(problems))
        asserts.equals(env, 3, len(problems[0].split("\n")), problems[0])
        for part in parts:
            asserts.true(env, part in problems[0], "\"{}\" is not in: {}".format(part, problems[0]))
    for kinds, chosen, part in [
        (two, "clout", "DIST_TESTING_EXECUTOR = \"clout\". Did you mean \"cloud\"?"),
        ([], "cloud", "DIST_TESTING_EXECUTOR=cloud without executors.remote()"),
    ]:
        problems = _problems(kinds, [], chosen)
        asserts.equals(env, 1, len(problems), "{}".format(problems))
        asserts.true(env, part in problems[0], problems[0])
    return unittest.end(env)

declaration_test = unittest.make(_declaration_test_impl)

def executors_test_suite(*, name):
    """Declares the tests of this file and a suite of them.

    Args:
        name: Name of the suite.
    """
    tests = [
        capacity_test,
        declaration_test,
        pool_for_test,
        properties_test,
    ]
    unittest.suite(name, *[partial.make(test, size = "small") for test in tests])
