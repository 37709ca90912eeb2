"""The argument `backends`: names, declarations of a repository's own, and error texts."""

load("@bazel_skylib//lib:partial.bzl", "partial")
load("@bazel_skylib//lib:unittest.bzl", "asserts", "unittest")
load("//backends:table.bzl", "BACKENDS", "TABLE")
load("//dist_testing:backends.bzl", "declare_backend")
load("//dist_testing/private:backends.bzl", "resolve_backends")  # buildifier: disable=bzl-visibility
load(":problem_asserts.bzl", "assert_accepted", "assert_refused")

RING = declare_backend(
    name = "ring",
    torch_backend = "ring",
    device = "cpu",
    register_module = "ring",
    deps = [Label("//dist_testing")],
)
_NPU = declare_backend(name = "npu", torch_backend = "cpu:gloo,npu:hccl", device = "npu", register_module = "torch_npu")
_OTHER_RING = declare_backend(name = "ring", torch_backend = "ring", device = "cpu")
_OTHER_GLOO = declare_backend(name = "gloo", torch_backend = "gloo", device = "cpu")

def _problems(backends):
    _, _, problems = resolve_backends(backends, BACKENDS)
    return problems

def _names_test_impl(ctx):
    env = unittest.begin(ctx)
    assert_accepted(env, _problems(["gloo", "nccl"]))
    assert_refused(env, _problems([]), "backends = []", "at least one", "gloo, gloo_nccl")
    assert_refused(env, _problems("gloo"), "backends = \"gloo\"", "A list")
    assert_refused(env, _problems(None), "backends = None")
    assert_refused(env, _problems(select({"//conditions:default": ["gloo"]})), "backends = select(...)\n")
    assert_refused(env, _problems(["glo"]), "\"glo\" is not a backend", "Did you mean \"gloo\"?", "nccl")
    assert_refused(env, _problems(["carrier_pigeon"]), "\"carrier_pigeon\" is not a backend.\n", "value of declare_backend")
    assert_refused(env, _problems([4]), "4 is not a backend")
    assert_refused(env, _problems(["gloo", "gloo"]), "\"gloo\" is there twice", "Drop one")
    return unittest.end(env)

names_test = unittest.make(_names_test_impl)

def _declarations_test_impl(ctx):
    env = unittest.begin(ctx)
    names, known, problems = resolve_backends(["gloo", RING, _NPU], BACKENDS)
    assert_accepted(env, problems)
    asserts.equals(env, ["gloo", "ring", "npu"], names)
    asserts.equals(env, RING, known["ring"])
    asserts.equals(env, BACKENDS["gloo"], known["gloo"])
    asserts.false(env, "ring" in BACKENDS)

    # The library's own value is the same as its name.
    assert_accepted(env, _problems([BACKENDS["gloo"]]))
    assert_refused(env, _problems([RING, RING]), "[\"ring\", \"ring\"]: \"ring\" is there twice")
    asserts.true(env, "\"ring\" is declared twice" in _problems([RING, _OTHER_RING])[0])
    assert_refused(env, _problems([_OTHER_GLOO]), "\"gloo\" is declared twice", "dist_testing declares a backend of that name")
    assert_refused(env, _problems([{"name": "ring"}]), "{\"name\": \"ring\"} is not a backend")
    return unittest.end(env)

declarations_test = unittest.make(_declarations_test_impl)

def _table_test_impl(ctx):
    # Labels of one repository mean nothing to Python.
    env = unittest.begin(ctx)
    asserts.equals(env, sorted(BACKENDS), sorted(TABLE["backends"]))
    asserts.equals(env, sorted([key for key in RING if key != "deps"]), sorted(TABLE["backends"]["gloo"]))
    asserts.true(env, RING["deps"][0].endswith("//dist_testing:dist_testing"), RING["deps"][0])
    return unittest.end(env)

table_test = unittest.make(_table_test_impl)

def backends_test_suite(*, name):
    """Declares the tests of this file and a suite of them.

    Args:
        name: Name of the suite.
    """
    tests = [
        declarations_test,
        names_test,
        table_test,
    ]
    unittest.suite(name, *[partial.make(test, size = "small") for test in tests])
